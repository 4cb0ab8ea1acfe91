"""What is served is what the modules of the page and the pinned libraries give."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "src" / "shoal" / "web" / "page"
sys.path.insert(0, str(ROOT / "scripts"))

import build_page  # type: ignore[import-not-found]  # noqa: E402


def test_the_joined_module_is_current() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "build_page.py"), "--check"]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, f"{checked.stdout}run scripts/build_page.py"


@pytest.mark.long
@pytest.mark.system("npm")
def test_the_libraries_are_those_of_their_packages(tmp_path: Path) -> None:
    build_page.fetch_libraries(tmp_path)
    for name, library in build_page.read_manifest().items():
        for file in library["files"]:
            fetched = build_page.library_file(tmp_path, name, file)
            kept = build_page.library_file(build_page.VENDOR, name, file)
            assert fetched.read_bytes() == kept.read_bytes()


def test_no_module_makes_markup_of_text() -> None:
    modules = {path.name: path.read_text() for path in PAGE.glob("*.js")}
    risky = re.compile(r"innerHTML|outerHTML|insertAdjacent|document\.write|dangerously|\beval\b")
    assert {name for name, text in modules.items() if risky.search(text)} == set()
    assert {name for name, text in modules.items() if text.count("\n") > 400} == set()


def test_the_page_names_no_other_host() -> None:
    for name in ("index.html", "style.css"):
        text = (ROOT / "src" / "shoal" / "web" / "static" / name).read_text()
        assert not re.search(r"https?://|@import|url\(", text)


def test_licences_are_served() -> None:
    text = (ROOT / "src" / "shoal" / "web" / "static" / "licences.txt").read_text()
    assert text.count("MIT") >= 2
    assert "Apache License" in text
