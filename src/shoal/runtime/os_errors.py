"""Errors of the operating system as one message with a remedy.

A full or read-only disk, a port in use: nothing is wrong with the command line or with this
program, so that a traceback would help nobody. `--verbose` shows it.
"""

import errno
import os
from typing import Final

from shoal.model.errors import SystemFailure

_OTHER_FOLDER: Final = (
    "choose a folder that can be written (--runs-dir, --ledger, --dir or --out; XDG_STATE_HOME and "
    "XDG_CACHE_HOME for the rest)"
)
_FREE_SPACE: Final = (
    "free space on that disk, e.g. with shoal runs rm, or choose a folder on another one; shoal "
    "doctor shows what is free"
)
_REMEDIES: Final = {
    errno.ENOSPC: _FREE_SPACE,
    errno.EDQUOT: _FREE_SPACE,
    errno.EROFS: _OTHER_FOLDER,
    errno.EACCES: _OTHER_FOLDER,
    errno.EPERM: _OTHER_FOLDER,
    errno.ENOTDIR: _OTHER_FOLDER,
    errno.ENOENT: f"check the path: a folder in it is missing; or {_OTHER_FOLDER}",
    errno.EFBIG: "raise the limit of the size of files (ulimit -f), or write less",
    errno.EADDRINUSE: "another process listens there: stop it, or choose another port",
    errno.EADDRNOTAVAIL: "choose an address of this machine, such as 127.0.0.1",
    errno.EMFILE: "raise the limit of open files, e.g. ulimit -n 65536",
    errno.ENFILE: "close other programs: this machine has no free file handles",
    errno.ENOMEM: "free memory: shoal doctor shows what is available",
}
_VERBS: Final = {
    errno.ENOSPC: "cannot write",
    errno.EDQUOT: "cannot write",
    errno.EROFS: "cannot write",
    errno.EACCES: "cannot open",
    errno.EPERM: "cannot change",
    errno.EFBIG: "cannot write",
}
_SEE_TRACEBACK: Final = "run the command again with shoal --verbose to see where it happened"


def describe_os_error(error: OSError) -> SystemFailure:
    """What the operating system refused, to which file, and what to do."""
    number = error.errno or 0
    reason = (error.strerror or str(error) or repr(error)).strip()
    if number in _REMEDIES:
        # Arrow repeats itself: "[Errno 28] Error writing bytes to file. Detail: …".
        reason = os.strerror(number)
    files = " to ".join(os.fsdecode(f) for f in (error.filename, error.filename2) if f is not None)
    verb = _VERBS.get(number)
    subject = " ".join(filter(None, [verb, files])) if files else (verb and f"{verb} a file")
    text = f"{subject}: {reason[:1].lower()}{reason[1:]}" if subject else reason
    return SystemFailure(text, remedy=_REMEDIES.get(number, _SEE_TRACEBACK))
