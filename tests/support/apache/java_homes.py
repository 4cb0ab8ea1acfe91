"""Made-up homes of Java: a `release` file and a `bin/java` that does what a test wants."""

from pathlib import Path

ALL_MODULES = "java.base jdk.incubator.vector"


def make_java_home(
    home: Path, version: str, *, modules: str = ALL_MODULES, script: str = "exit 1"
) -> Path:
    """A folder that looks like the home of a Java of this version."""
    make_executable(home / "bin" / "java", script)
    (home / "release").write_text(f'JAVA_VERSION="{version}"\nMODULES="{modules}"\n')
    return home


def make_executable(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path
