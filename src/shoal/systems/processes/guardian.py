"""A small process that stands between an owner and one child, so that the child never
outlives the owner.

Run as a script, by path, with nothing but the standard library:

    guardian.py OWNER_PID SCRATCH COMMAND ARGUMENT...

Rules:
- Standard input is the leash: a byte on it is the order to kill the child's process group;
  its end means that the owner died, in whatever way, and is the same order. The owner's id
  is watched too, in case a fork of the owner holds the other end open.
- The first and only line on standard output is the child's process id.
- The child leads a process group of its own, so that signals meant for it (a pause above
  all) do not reach the guardian, and its output goes where standard error goes.
- When the child ends, the guardian ends with the same exit code (128 + N for signal N).
- SCRATCH, unless empty, is a folder inside a temporary folder that nobody would clean up
  after a dead owner; then the guardian does, and the last one takes the outer folder too.
"""

import os
import select
import shutil
import signal
import sys
from pathlib import Path

CHECK_OWNER_EVERY_S = 1.0


def main() -> int:
    """Starts the child and stays until it has ended."""
    owner, scratch, command = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the owner's business
    signal.signal(signal.SIGTERM, _let_go)
    ended_read, ended_write = os.pipe()
    os.set_blocking(ended_write, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(ended_write)
    child = _start(command)
    orphaned = True
    try:
        os.write(1, b"%d\n" % child)
        orphaned = _watch(child, owner, ended_read)
    except (SystemExit, OSError):
        pass  # told to end, or nobody heard the id: the child ends with us
    os.killpg(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    if orphaned and scratch:
        _clean(Path(scratch))
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _let_go(*_: object) -> None:
    raise SystemExit


def _start(command: list[str]) -> int:
    return os.posix_spawn(
        command[0],
        command,
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, 2, 1),
        ],
        setpgroup=0,
        setsigdef=[signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE],
    )


def _watch(child: int, owner: int, ended: int) -> bool:
    """Returns once the child has ended or must end; True if the owner is gone."""
    while os.getppid() == owner:
        ready, _, _ = select.select([0, ended], [], [], CHECK_OWNER_EVERY_S)
        if ended in ready:
            os.read(ended, 4096)
            # The child is left as a zombie here, so that its id stays its own until the end.
            if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                return False
        if 0 in ready:
            return not os.read(0, 1)
    return True


def _clean(scratch: Path) -> None:
    shutil.rmtree(scratch, ignore_errors=True)
    others = [entry for entry in scratch.parent.iterdir() if entry.is_dir()]
    if not others:
        shutil.rmtree(scratch.parent, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
