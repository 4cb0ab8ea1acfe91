"""Where our folders are: the XDG rules."""

from pathlib import Path

import pytest

from shoal.runtime import paths


def test_folders_follow_the_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "c"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "s"))
    assert paths.cache_dir() == tmp_path / "c" / "shoal"
    assert paths.state_dir() == tmp_path / "s" / "shoal"
    assert not paths.cache_dir().exists()
    assert paths.make_folder(paths.cache_dir()).is_dir()


@pytest.mark.parametrize("value", [None, "", "relative/path"])
def test_without_usable_variables_they_are_in_the_home(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, value: str | None
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for variable in ("XDG_CACHE_HOME", "XDG_STATE_HOME"):
        if value is None:
            monkeypatch.delenv(variable, raising=False)
        else:
            monkeypatch.setenv(variable, value)
    assert paths.cache_dir() == tmp_path / ".cache" / "shoal"
    assert paths.state_dir() == tmp_path / ".local" / "state" / "shoal"
