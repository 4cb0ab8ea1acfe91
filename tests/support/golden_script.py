"""Scripts with transcripts: text files of blocks, commands, a line `----`, and what happened.

Lines that begin with # are comments. What commands mean is the business of a scene; here is how
a file is played, and compared with the transcript that was reviewed. After a change that is
meant, `SHOAL_REWRITE=yes pytest …` writes the transcripts anew; the difference is for reading,
not for nodding through.
"""

import os
from pathlib import Path
from typing import Protocol

SEPARATOR = "----"


class Scene(Protocol):
    """Obeys commands, and tells what happened."""

    def play(self, command: str) -> list[str]: ...


def scripts_beside(test_file: str) -> list[Path]:
    """The scripts that belong to a test."""
    return sorted((Path(test_file).parent / "scripts").glob("*.txt"))


def check_script(path: Path, scene: Scene) -> None:
    """Plays a script, and asserts that it goes as its transcript says."""
    written = path.read_text()
    blocks = written.rstrip("\n").split("\n\n")
    played = "\n\n".join(_play(scene, block) for block in blocks) + "\n"
    if os.environ.get("SHOAL_REWRITE") == "yes":
        path.write_text(played)
    else:
        assert played == written


def _play(scene: Scene, block: str) -> str:
    lines = block.split("\n")
    if SEPARATOR not in lines:
        assert all(line.startswith("#") for line in lines), f"a block without {SEPARATOR}: {block}"
        return block
    commands = lines[: lines.index(SEPARATOR)]
    told: list[str] = []
    for command in commands:
        if not command.startswith("#"):
            told += scene.play(command)
    return "\n".join([*commands, SEPARATOR, *(told or ["nothing happens"])])
