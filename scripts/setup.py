"""Creates `.venv` from the lock files, with nothing but a Python and its `venv`.

Rules of this file: it runs on any Python that `make` finds, so it uses no syntax newer than 3.6
and imports only the standard library. Every refusal is one message that says what is wrong and
what to do. Everything installed comes from `requirements/`, where each file is pinned by hash. The
stamp contains the fingerprint of the locks: if they did not change, a changed pyproject.toml costs
only a second.
"""

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VENV = os.path.join(ROOT, ".venv")
STAMP = os.path.join(VENV, ".shoal-setup")
LOCKS = ["requirements/build.txt", "requirements/all.txt"]
OLDEST, NEWEST = (3, 11), (3, 14)
CANDIDATES = ["python3", "python3.13", "python3.12", "python3.14", "python3.11"]
NEEDED_GB = 3


def refuse(problem, remedy):
    sys.exit("shoal set-up: {}\n  What to do: {}".format(problem, remedy))


def is_usable(python):
    """True if this interpreter is of a supported version and can make a venv."""
    code = "import sys, venv, ensurepip; sys.exit(not {} <= sys.version_info[:2] <= {})"
    command = [python, "-c", code.format(OLDEST, NEWEST)]
    try:
        return subprocess.call(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) == 0
    except OSError:
        return False


def find_python():
    named = os.environ.get("PYTHON")
    for python in [named] if named else CANDIDATES + [sys.executable]:
        if is_usable(python):
            return python
    span = "{}.{} to {}.{}".format(*(OLDEST + NEWEST))
    return refuse(
        "no usable Python found (tried {})".format(named or ", ".join(CANDIDATES)),
        "install Python {} with its venv module (Debian and Ubuntu: apt-get install "
        "python3 python3-venv), or name one: make setup PYTHON=/path/to/python3.13".format(span),
    )


def check_platform():
    if sys.platform == "win32":
        refuse("Windows is not supported directly", "run it inside WSL 2 (wsl --install)")
    if sys.platform not in ("linux", "darwin"):
        refuse("platform {!r} is not supported".format(sys.platform), "use Linux or macOS")
    if sys.platform == "linux" and platform.libc_ver()[0] != "glibc":
        refuse(
            "this Linux has no glibc (Alpine?), and several dependencies ship only glibc wheels",
            "use a glibc distribution such as Debian, Ubuntu or Fedora",
        )
    if platform.machine() not in ("x86_64", "aarch64", "arm64"):
        refuse(
            "processor {!r} has no prebuilt wheels".format(platform.machine()),
            "use an x86-64 or ARM64 machine",
        )
    free_gb = shutil.disk_usage(ROOT).free / 1e9
    if free_gb < NEEDED_GB:
        refuse(
            "only {:.1f} GB free here, set-up needs {}".format(free_gb, NEEDED_GB),
            "free some disk space and run make setup again",
        )


def step(number, text, command):
    started = time.monotonic()
    print("[{}/4] {}".format(number, text), flush=True)
    code = subprocess.call(command, cwd=ROOT)
    if code != 0:
        refuse(
            "step {} failed with exit code {} (its messages are above)".format(number, code),
            "if the network was the cause, run make setup again: it continues from pip's cache",
        )
    print("      done in {:.0f} s".format(time.monotonic() - started), flush=True)


def fingerprint():
    digest = hashlib.sha256()
    for lock in LOCKS:
        with open(os.path.join(ROOT, lock), "rb") as content:
            digest.update(content.read())
    return digest.hexdigest()


def read_stamp():
    try:
        with open(STAMP) as stamp:
            return stamp.read()
    except OSError:
        return ""


def install_locked(python, install):
    locked = install + ["--require-hashes", "--no-build-isolation", "--no-deps", "-r"]
    step(1, "making .venv with {}".format(python), [python, "-m", "venv", "--clear", VENV])
    step(2, "installing build tools", locked + [LOCKS[0]])
    size = "about 1 GB; 1 to 4 minutes the first time"
    step(3, "installing dependencies ({})".format(size), locked + [LOCKS[1]])


def main():
    check_platform()
    python = find_python()
    locks = fingerprint()
    install = [os.path.join(VENV, "bin", "python"), "-m", "pip", "install"]
    install += ["--disable-pip-version-check", "--quiet", "--progress-bar", "on"]
    if read_stamp() != locks:
        if os.path.exists(STAMP):
            os.remove(STAMP)  # until the end, this venv must not look finished
        install_locked(python, install)
    step(4, "installing shoal itself", install + ["--no-build-isolation", "--no-deps", "-e", "."])
    with open(STAMP, "w") as stamp:
        stamp.write(locks)


main()
