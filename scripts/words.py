"""Report words and names that the project no longer uses, so that they do not slip back.

    python scripts/words.py            list everything, with counts
    python scripts/words.py --strict   exit 1 if user-visible text has a replaced word

Three things are reported for src/:
- functions whose first word is a past participle (a function is a verb: `append_batch`)
- replaced words, in user-visible text (messages, logs, help, docs) and elsewhere
- class names that are used twice

Only replaced words in user-visible text fail a check (tests/habits/test_words.py); the rest is a
report, because a good name can look like a bad one to a script.
"""

import argparse
import ast
import re
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
Function = ast.FunctionDef | ast.AsyncFunctionDef
# What matters of a tree.
Kept = Function | ast.ClassDef | ast.Module | ast.Constant

# The replaced words, with what to write instead.
REPLACED = {
    r"\btold\b|\btell(?:s|ing)? of\b": "report, notify, announce",
    r"\banew\b": "again, new",
    r"\bwh(?:om?|at|ich)ever\b|\bwho begins\b": "name the actor or the thing",
    r"\b(?:no|any) more\b(?! than\b)": "no longer",
    r"(?<!there )\b(?-i:is none)\b|\bthat is no\b|\bis no (?:list|number)\b": "is not a valid …",
    r"\bcannot be had\b": "is not available",
    r"\bof ours\b|\bof others\b": "internal, external, or name the owner",
    r"\b(?:makes?|made) itself known\b": "registers",
    r"\bcount(?:s|ed)? on\b": "relies on",
    r"\b(?:goes|went|go) on\b": "continues, resumes",
    r"\bin turn\b": "leave it out, or say in which order",
    r"\bat last\b": "leave it out",
    r"\bwhat is there\b": "name the thing",
    r"\bhearsay\b": "indirect evidence",
    r"\bmisfortune\b": "fault",
    r"\bgoodbye\b": "end of the connection",
    r"\bby itself\b": "automatically",
}
_PATTERN = re.compile("|".join(REPLACED), re.IGNORECASE)
_IRREGULAR = {
    "begun", "bound", "built", "drawn", "given", "gone", "held", "kept", "known", "led",
    "left", "lost", "made", "seen", "sent", "shown", "taken", "told", "torn", "written",
}  # fmt: skip
# Names that stay: asyncio's own, and one that a guide documents.
_STAY = {"cancelled", "merged_trace"}
_NOT_PARTICIPLES = {"need", "feed", "speed", "seed", "embed", "exceed", "proceed"}
# Stored results keep the words of their day, and a changelog quotes none.
_NOT_OURS = ("docs/proofs/",)


class Place(NamedTuple):
    """Where a word or a name stands."""

    path: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.what}"


@cache
def read_modules(root: Path = ROOT) -> list[tuple[str, list[Kept], str]]:
    """Every module of the package: path, what matters of its tree, text. Takes most of the time."""
    texts = {
        path.relative_to(root).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted((root / "src").rglob("*.py"))
    }
    return [
        (path, [node for node in ast.walk(ast.parse(text)) if isinstance(node, Kept)], text)
        for path, text in texts.items()
    ]


def is_participle(name: str) -> bool:
    first = name.strip("_").split("_")[0]
    if name in _STAY:
        return False
    if first in _IRREGULAR:
        return True
    return first.endswith("ed") and len(first) > 4 and first not in _NOT_PARTICIPLES


def find_participles(root: Path = ROOT) -> list[Place]:
    """Functions named by a participle; properties are values and may be."""
    return [
        Place(path, node.lineno, node.name)
        for path, nodes, _ in read_modules(root)
        for node in nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and is_participle(node.name)
        and not any("property" in ast.unparse(item) for item in node.decorator_list)
    ]


def find_class_twins(root: Path = ROOT) -> dict[str, list[Place]]:
    """Class names that are used more than once."""
    places: dict[str, list[Place]] = defaultdict(list)
    for path, nodes, _ in read_modules(root):
        for node in nodes:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(Place(path, node.lineno, node.name))
    return {name: found for name, found in sorted(places.items()) if len(found) > 1}


def find_visible_words(root: Path = ROOT) -> list[Place]:
    """Replaced words in what a user reads: sentences in strings, help of commands, documents."""
    found = []
    for path, nodes, _ in read_modules(root):
        docstrings = set() if "/cli/" in path else _docstring_ids(nodes)
        for node in nodes:
            is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
            if is_text and id(node) not in docstrings and " " in node.value:
                found += _matches(path, node.lineno, node.value)
    documents = [*root.glob("*.md"), *root.glob("Makefile"), *(root / "docs").rglob("*.md")]
    for document in sorted(documents):
        name = document.relative_to(root).as_posix()
        if not name.startswith(_NOT_OURS):
            for number, line in enumerate(document.read_text(encoding="utf-8").splitlines(), 1):
                found += _matches(name, number, line)
    return found


def find_inner_words(root: Path = ROOT) -> list[Place]:
    """Replaced words anywhere in the source: docstrings, comments, names."""
    return [
        place
        for path, _, text in read_modules(root)
        for number, line in enumerate(text.splitlines(), 1)
        for place in _matches(path, number, line)
    ]


def _matches(path: str, line: int, text: str) -> list[Place]:
    return [Place(path, line, match.group(0)) for match in _PATTERN.finditer(text)]


def _docstring_ids(nodes: list[Kept]) -> set[int]:
    ids = set()
    for node in nodes:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                ids.add(id(first.value))
    return ids


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--strict", action="store_true", help="fail on user-visible words")
    options = parser.parse_args(arguments)
    participles, twins = find_participles(), find_class_twins()
    visible, inner = find_visible_words(), find_inner_words()
    for place in participles:
        print(f"{place}: a function is a verb")
    for name, places in twins.items():
        print(f"class {name}: {', '.join(f'{place.path}:{place.line}' for place in places)}")
    for place in inner:
        print(f"{place}: replaced")
    for place in visible:
        print(f"{place}: replaced, and users read it")
    print(
        f"functions named by a participle {len(participles)}, class names used twice {len(twins)}, "
        f"replaced words {len(inner)} in src, {len(visible)} in user-visible text"
    )
    return 1 if options.strict and visible else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
