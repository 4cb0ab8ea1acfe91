"""Rules of the house that linters cannot see.

Lengths, docstrings of modules, modules that nothing uses, tests that assert nothing,
addresses in lock files, paths of one machine, targets without an explanation.
"""

import ast
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LONGEST_FILE = 800
LONGEST_FUNCTION = 70
MOST_MODULES = 15  # in a folder
LARGE_FOLDERS = {
    "src/shoal/lite/api": "one file for each API key",
    "src/shoal/model": "one file for each kind of thing that all packages share",
    "src/shoal/lite/simulation": "one file for each part of a simulated cluster; not in the wheel",
}
MOST_POSITIONAL = 4

Function = ast.FunctionDef | ast.AsyncFunctionDef


def list_tracked(*patterns: str) -> list[Path]:
    """Files of the project, committed or about to be."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [ROOT / name for name in names.splitlines() if (ROOT / name).is_file()]


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module", autouse=True)
def forget_trees() -> Iterator[None]:
    """Those of all files together are large."""
    yield
    parse.cache_clear()


def parse_modules(*patterns: str) -> Iterator[tuple[Path, ast.Module]]:
    for path in list_tracked(*patterns):
        yield path.relative_to(ROOT), parse(path)


def functions(tree: ast.AST) -> Iterator[Function]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def test_no_file_is_too_long() -> None:
    lengths = {path: path.read_text(encoding="utf-8").count("\n") for path in list_tracked("*.py")}
    assert not {str(path): n for path, n in lengths.items() if n > LONGEST_FILE}


def test_no_folder_has_too_many_modules() -> None:
    folders = Counter(str(path.parent.relative_to(ROOT)) for path in list_tracked("src/*.py"))
    # The package itself is one more file.
    large = {folder for folder, files in folders.items() if files > MOST_MODULES + 1}
    assert large == set(LARGE_FOLDERS)


def test_no_function_is_too_long() -> None:
    too_long = [
        f"{path}:{node.lineno} {node.name}"
        for path, tree in parse_modules("*.py")
        for node in functions(tree)
        if (node.end_lineno or 0) - node.lineno + 1 > LONGEST_FUNCTION
    ]
    assert not too_long


def test_no_function_takes_too_many_positional_arguments() -> None:
    def count(node: Function) -> int:
        arguments = node.args.posonlyargs + node.args.args
        return sum(argument.arg not in {"self", "cls"} for argument in arguments)

    too_many = [
        f"{path}:{node.lineno} {node.name} ({count(node)})"
        for path, tree in parse_modules("src/*.py", "benchmarks/*.py")
        for node in functions(tree)
        # Compiled kernels take arrays by position: numba has no cheap keyword arguments.
        if count(node) > MOST_POSITIONAL and not path.stem.endswith("kernels")
    ]
    assert not too_many


def test_every_module_states_its_rules() -> None:
    assert not [str(path) for path, tree in parse_modules("*.py") if not ast.get_docstring(tree)]


def test_no_module_is_dead() -> None:
    def module_name(path: Path) -> str:
        return ".".join(path.with_suffix("").parts[1:]).removesuffix(".__init__")

    names = {module_name(path.relative_to(ROOT)) for path in list_tracked("src/*.py")}
    modules = {name for name in names if not name.endswith(".__main__")}
    # Spark imports `pyspark_…` automatically; the event stream is there for its readers.
    used = {"shoal", "pyspark_shoal", "shoal.model.events"}
    for path, tree in parse_modules("src/*.py"):
        own_name = module_name(path)
        used |= {name for name in find_mentioned(tree) if name != own_name}
    used |= set(re.findall(r'"(shoal[\w.]*):', (ROOT / "pyproject.toml").read_text()))
    packages = {name.rpartition(".")[0] for name in used}
    assert sorted(modules - used - packages) == []


def find_mentioned(tree: ast.Module) -> Iterator[str]:
    """Modules that a module imports, or names in a string to load or run later."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from re.findall(r"\bshoal(?:\.\w+)+", node.value)


def test_every_test_asserts() -> None:
    words = ("assert", "raises", "check", "expect", "verify", "warns")
    hollow = [
        f"{path}:{node.lineno} {node.name}"
        for path, tree in parse_modules("tests/**/test_*.py")
        for node in functions(tree)
        if node.name.startswith("test_") and not any(word in ast.unparse(node) for word in words)
    ]
    assert not hollow


@pytest.mark.parametrize("lock", ["requirements/all.txt", "requirements/build.txt"])
def test_locks_name_hashes_and_no_address(lock: str) -> None:
    text = (ROOT / lock).read_text()
    assert "--hash=sha256:" in text
    assert "://" not in text


def test_no_path_of_one_machine() -> None:
    pattern = re.compile(r"(^|[^\w.])/(work|root|farm|home/\w+)/")
    texts = list_tracked("*.py", "*.md", "*.toml", "*.txt", "*.sh", "*.json", "Makefile", "*.yaml")
    assert not [str(path) for path in texts if pattern.search(path.read_text(encoding="utf-8"))]


def test_every_target_is_explained() -> None:
    makefile = (ROOT / "Makefile").read_text()
    phony = set(re.findall(r"^\.PHONY: (\S+)$", makefile, re.MULTILINE))
    explained = set(re.findall(r"^(\S+):.*## ", makefile, re.MULTILINE))
    assert phony - explained == {"system-packages"}


def test_links_in_documents_lead_somewhere() -> None:
    broken = [
        f"{path.relative_to(ROOT)}: {target}"
        for path in list_tracked("*.md")
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8"))
        if not (path.parent / target).exists()
    ]
    assert not broken


def test_the_changelog_tells_of_this_version() -> None:
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version
    assert f"## {version[1]}" in (ROOT / "CHANGELOG.md").read_text()
