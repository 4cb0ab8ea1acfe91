"""The sample that is read as a newcomer would: equal for a seed, of the package, of its size."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import sample  # type: ignore[import-not-found]  # noqa: E402

MODULE = '''
def act(name):
    """Act."""
    if not name:
        raise ValueError("a name is needed")
    raise KeyError(name)
'''


def plant(root: Path, count: int) -> Path:
    """A package with so many modules of one function and one message."""
    (root / "src").mkdir()
    for number in range(count):
        (root / "src" / f"module{number}.py").write_text(MODULE)
    return root


def test_functions_and_messages_are_drawn_by_seed(tmp_path: Path) -> None:
    root = plant(tmp_path, 60)
    functions, messages = sample.draw(1, root)
    assert (len(functions), len(messages)) == (sample.FUNCTIONS, sample.MESSAGES)
    assert sample.draw(1, root) == (functions, messages)
    assert sample.draw(2, root) != (functions, messages)
    assert {place.name for place in functions} == {"act"}
    assert {place.name for place in messages} == {"ValueError"}
    assert messages[0].source == 'raise ValueError("a name is needed")'


def test_a_small_package_is_drawn_whole(tmp_path: Path) -> None:
    functions, messages = sample.draw(1, plant(tmp_path, 2))
    assert [place.path for place in functions] == ["src/module0.py", "src/module1.py"]
    assert len(messages) == 2
