"""User-visible text uses no replaced word; the rest of the report works and is read by people."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import words  # type: ignore[import-not-found]  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def forget_modules() -> Iterator[None]:
    """Their trees are large."""
    yield
    words.read_modules.cache_clear()


def plant(root: Path, source: str, document: str = "Fine.\n") -> Path:
    """A project with one module and one document."""
    (root / "src" / "shoal" / "lite").mkdir(parents=True)
    (root / "src" / "shoal" / "lite" / "planted.py").write_text(source)
    (root / "docs").mkdir()
    (root / "docs" / "page.md").write_text(document)
    return root


def test_user_visible_text_has_no_replaced_word() -> None:
    assert [str(place) for place in words.find_visible_words()] == []


@pytest.mark.parametrize(
    "source",
    [
        'raise ValueError("port 9092 cannot be had")\n',
        'log.warning("broker %d leads no more", 3)\n',
        'message = f"{name} is none of the topics"\n',
        'print("the controller was told of it")\n',
        'print("the request fails, whatever its epoch is")\n',
        'print("the mirror does not go on without it")\n',
    ],
)
def test_a_planted_message_is_found(tmp_path: Path, source: str) -> None:
    assert len(words.find_visible_words(plant(tmp_path, source))) == 1


def test_a_planted_sentence_of_a_document_is_found(tmp_path: Path) -> None:
    root = plant(tmp_path, "x = 1\n", "# Page\n\nBrokers are asked anew.\n")
    assert [str(place) for place in words.find_visible_words(root)] == ["docs/page.md:3 anew"]


def test_the_help_of_make_is_read_too(tmp_path: Path) -> None:
    root = plant(tmp_path, "x = 1\n")
    (root / "Makefile").write_text("test: ## run all, whatever it takes\n")
    assert [str(place) for place in words.find_visible_words(root)] == ["Makefile:1 whatever"]


def test_docstrings_and_short_strings_are_reported_only(tmp_path: Path) -> None:
    root = plant(tmp_path, '"""Who is told of it."""\nstate = "told"\n')
    assert words.find_visible_words(root) == []
    assert len(words.find_inner_words(root)) == 2


def test_names_are_reported(tmp_path: Path) -> None:
    source = "def written(): ...\ndef write(): ...\nclass A: ...\ndef f():\n    class A: ...\n"
    root = plant(tmp_path, source)
    assert [place.what for place in words.find_participles(root)] == ["written"]
    assert list(words.find_class_twins(root)) == ["A"]


def test_the_report_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert words.main(["--strict"]) == 0
    assert "user-visible text" in capsys.readouterr().out.splitlines()[-1]
