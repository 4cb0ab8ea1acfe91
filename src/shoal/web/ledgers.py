"""Reads ledgers and tables of a run in a child process (`children.py`).

pyarrow and numpy take more memory than the whole server, and a large ledger takes time.
"""

import json
import sys
from pathlib import Path
from typing import Any, Final

from shoal.model.errors import ShoalError

Json = dict[str, Any]
MOST_ROWS: Final = 1000


def answer_request(request: Json) -> Json:
    """Read what a request names; runs in the child."""
    try:
        match request:
            case {"life": dict(name), "run_dir": str(folder)}:
                return _read_life(Path(folder), name)
            case {"table": str(table), "run_dir": str(folder), "first": int(), "count": int()}:
                rows = slice(request["first"], request["first"] + request["count"])
                return _read_table(Path(folder) / "tables" / f"{table}.parquet", rows)
    except ShoalError as error:
        return {"error": error.message, "remedy": error.remedy}
    return {"error": "not a request of the server"}


def _read_life(run_dir: Path, name: Json) -> Json:
    from shoal.audit.page.life import MessageName, message_life

    life = message_life(
        [run_dir],
        MessageName(str(name["topic"]), str(name["producer"]), name["lane"], name["sequence"]),
    )
    return life.to_json()


def _read_table(path: Path, rows: slice) -> Json:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        return {"error": f"{path.name} cannot be read: {error!s:.200}"}
    part = table.slice(rows.start, rows.stop - rows.start)
    return {
        "columns": table.column_names,
        "rows": [list(row.values()) for row in part.to_pylist()],
        "total": table.num_rows,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(answer_request(json.load(sys.stdin))))
