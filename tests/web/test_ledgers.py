"""What the child process answers: lives, tables, and errors as text."""

from pathlib import Path

import pytest

from shoal.web.ledgers import answer_request
from support.web_runs import write_traced_run


def life_of(folder: Path, sequence: int, producer: str = "p0") -> dict[str, object]:
    name = {"topic": "t", "producer": producer, "lane": 1, "sequence": sequence}
    return answer_request({"life": name, "run_dir": str(folder)})


def test_a_life_says_how_far_a_message_came(tmp_path: Path) -> None:
    folder = write_traced_run(tmp_path / "run")
    assert life_of(folder, 7)["last_stage"] == "source"
    assert life_of(folder, 8)["last_stage"] == "received"
    assert life_of(folder, 999)["last_stage"] == "unknown"
    assert life_of(folder, 8, "nobody")["last_stage"] == "unknown"


@pytest.mark.parametrize("wanted", [{}, {"life": 1}, {"table": "m"}, {"table": 3, "run_dir": "x"}])
def test_what_is_not_a_request_is_refused(wanted: dict[str, object]) -> None:
    assert "error" in answer_request(wanted)


def test_what_cannot_be_read_is_an_error_with_a_text(tmp_path: Path) -> None:
    assert "error" in life_of(tmp_path, 7)
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "m.parquet").write_text("not Parquet")
    wanted = {"table": "m", "run_dir": str(tmp_path), "first": 0, "count": 1}
    assert "m.parquet cannot be read" in answer_request(wanted)["error"]
