"""Draw functions and error messages to read as a newcomer would (docs/proofs/reading.md).

    python scripts/sample.py --seed 11             list the places
    python scripts/sample.py --seed 11 --source    with the source of each

The same seed draws the same places of the same commit. An error message is a `raise` with a text of
several words.
"""

import argparse
import ast
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
FUNCTIONS, MESSAGES = 50, 30


class Place(NamedTuple):
    """A function or an error message."""

    path: str
    line: int
    name: str
    source: str


def list_places(root: Path = ROOT) -> tuple[list[Place], list[Place]]:
    """All functions and all error messages of the package, in the order of their places."""
    functions: list[Place] = []
    messages: list[Place] = []
    for path in sorted((root / "src").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        name, tree = path.relative_to(root).as_posix(), ast.parse(text)
        functions += _find_functions(name, tree, text)
        messages += _find_messages(name, tree, text)
    return functions, messages


def _find_functions(path: str, tree: ast.Module, text: str) -> Iterator[Place]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            source = ast.get_source_segment(text, node) or ""
            yield Place(path, node.lineno, node.name, source)


def _find_messages(path: str, tree: ast.Module, text: str) -> Iterator[Place]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Raise) or not isinstance(node.exc, ast.Call):
            continue
        parts = (each for each in ast.walk(node.exc) if isinstance(each, ast.Constant))
        if any(isinstance(part.value, str) and " " in part.value for part in parts):
            name = ast.unparse(node.exc.func)
            yield Place(path, node.lineno, name, ast.get_source_segment(text, node) or "")


def draw(seed: int, root: Path = ROOT) -> tuple[list[Place], list[Place]]:
    """Draw the sample of a seed."""
    functions, messages = list_places(root)
    chance = random.Random(seed)  # noqa: S311
    return (
        sorted(chance.sample(functions, min(FUNCTIONS, len(functions)))),
        sorted(chance.sample(messages, min(MESSAGES, len(messages)))),
    )


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--source", action="store_true", help="with the source of each place")
    options = parser.parse_args(arguments)
    for kind, places in zip(("functions", "error messages"), draw(options.seed), strict=True):
        print(f"{len(places)} {kind}")
        for place in places:
            print(f"{place.path}:{place.line} {place.name}")
            if options.source:
                print(place.source, end="\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
