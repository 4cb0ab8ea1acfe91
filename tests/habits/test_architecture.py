"""Every file, function and folder that ARCHITECTURE.md names exists; its table of imports holds.

The page names code as `lite/api/api_00_produce.py: handle, _append_batch`, in text and in diagrams:
a path below `src/shoal/` or below the project, and after a colon names that this file defines.
Folders are named as `lite/storage/`, in backquotes.
"""

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
PLACES = (ROOT / "src" / "shoal", ROOT)
FILE = re.compile(r"([\w/.-]+\.py)(?:: (\w+(?:, \w+)*))?")
FOLDER = re.compile(r"`([\w/-]+/)`")
WORD = re.compile(r"\S*[A-Za-z0-9]\S*")
MOST_WORDS = 2600
PACKAGES = {path.parent.name for path in PLACES[0].glob("*/__init__.py")}
IMPORT = re.compile(r"^\s*(?:from|import) shoal\.(\w+)", re.MULTILINE)


def find_place(name: str) -> Path | None:
    return next((root / name for root in PLACES if (root / name).exists()), None)


@cache
def list_definitions(path: Path) -> frozenset[str]:
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, kinds))


def find_missing(page: str) -> list[str]:
    """What a page names and the project does not have."""
    missing = [name for name in FOLDER.findall(page) if find_place(name) is None]
    for file, names in FILE.findall(page):
        path = find_place(file)
        if path is None:
            missing.append(file)
            continue
        defined = list_definitions(path)
        missing += [f"{file}: {name}" for name in names.split(", ") if name and name not in defined]
    return missing


def test_everything_that_the_page_names_exists() -> None:
    assert find_missing(PAGE) == []


def test_the_page_names_files_and_functions() -> None:
    named = FILE.findall(PAGE)
    assert len({file for file, _ in named}) > 40
    assert len([names for _, names in named if names]) > 30


def test_the_page_stays_short() -> None:
    """It is read as a whole: what is said elsewhere is linked, not repeated."""
    assert len(WORD.findall(PAGE)) <= MOST_WORDS


def test_what_is_missing_is_found() -> None:
    page = "`lite/no_such_folder/`, `lite/gone.py`, `lite/cluster.py: LiteCluster, no_such_name`"
    assert find_missing(page) == [
        "lite/no_such_folder/",
        "lite/gone.py",
        "lite/cluster.py: no_such_name",
    ]


def list_permitted(page: str) -> dict[str, set[str]]:
    """What each package may import: its rows of the file map, and what those may import."""
    permitted: dict[str, set[str]] = {}
    for row in re.findall(r"^\| (`.+)$", page, re.MULTILINE):
        folders, *_, imports = [cell.strip() for cell in row.strip("| ").split("|")]
        names = {folder.split("/")[0] for folder in FOLDER.findall(folders)}
        found = PACKAGES if imports.startswith("all") else PACKAGES & {*re.findall(r"\w+", imports)}
        for name in names:
            permitted.setdefault(name, {name}).update(found)
    for names in permitted.values():
        while more := {below for name in names for below in permitted[name]} - names:
            names.update(more)
    return permitted


def test_packages_import_what_the_file_map_says() -> None:
    permitted = list_permitted(PAGE)
    assert set(permitted) == PACKAGES
    surplus = [
        f"{path.relative_to(ROOT)} imports {name}"
        for package in sorted(PACKAGES)
        for path in (PLACES[0] / package).rglob("*.py")
        for name in set(IMPORT.findall(path.read_text(encoding="utf-8"))) - permitted[package]
    ]
    assert surplus == []


def test_a_row_permits_what_its_packages_permit() -> None:
    page = "\n".join(
        f"| `{name}/` | | {{}} |".format({"web": "report", "report": "model"}.get(name, "nothing"))
        for name in sorted(PACKAGES)
    )
    assert list_permitted(page)["web"] == {"web", "report", "model"}
