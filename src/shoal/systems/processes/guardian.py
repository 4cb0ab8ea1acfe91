"""A small process between an owner and one child, so that the child never outlives the owner.

Run as a script, by path, with nothing but the standard library:

    guardian.py OWNER_PID SCRATCH COMMAND ARGUMENT...

Rules:
- Standard input is the control pipe: a byte on it is the order to kill the child's process
  group. The end of the pipe means that the owner died and is the same order. The owner's process
  id is checked too, in case a fork of the owner holds the other end open.
- The first and only line on standard output is the child's process id.
- The child leads a process group of its own, so that signals meant for it (above all a pause)
  do not reach the guardian. The child's output goes to the guardian's standard error.
- When the child exits, the guardian exits with the same code (128 + N for signal N).
- SCRATCH, unless empty, is a folder inside a temporary folder. If the owner died, the guardian
  deletes it, and the last guardian deletes the temporary folder too.
"""

import os
import select
import shutil
import signal
import sys
from pathlib import Path

CHECK_OWNER_EVERY_S = 1.0


def main() -> int:
    """Start the child and wait until it has exited."""
    owner, scratch, command = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the owner handles Ctrl-C
    signal.signal(signal.SIGTERM, _on_terminate)
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
        pass  # SIGTERM, or the owner closed the pipe before it read the id: kill the child
    os.killpg(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    if orphaned and scratch:
        _clean(Path(scratch))
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _on_terminate(*_: object) -> None:
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
    """Return once the child has exited or must be killed; True if the owner is dead."""
    while os.getppid() == owner:
        ready, _, _ = select.select([0, ended], [], [], CHECK_OWNER_EVERY_S)
        if ended in ready:
            os.read(ended, 4096)
            # WNOWAIT leaves the child a zombie, so that its id is not reused before `killpg`.
            if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                return False
        if 0 in ready:
            return not os.read(0, 1)
    return True


def _clean(scratch: Path) -> None:
    """Remove a temporary folder, and the one above it if no other is left there."""
    shutil.rmtree(scratch, ignore_errors=True)
    others = [entry for entry in scratch.parent.iterdir() if entry.is_dir()]
    if not others:
        shutil.rmtree(scratch.parent, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
