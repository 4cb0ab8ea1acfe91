"""Write docs/reference/support-matrix.md: what Kafka Lite serves, and what each client asked of it.

    SHOAL_REQUEST_LOG=FOLDER pytest tests/interop     # brokers log the requests they get
    python scripts/support_matrix.py --requests FOLDER

The first half comes from the registration lines of the API files, the second from those runs,
which are kept in docs/reference/support-matrix.tsv. Without `--requests` the page is made again
from both.
"""

import argparse
from collections import defaultdict
from pathlib import Path

from shoal.lite.api.table import APIS
from shoal.wire.api_keys import ApiKey

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "support-matrix.md"
KEPT = ROOT / "docs" / "reference" / "support-matrix.tsv"
# Clients in the tests that are not clients that people use.
INTERNAL_CLIENTS = ("shoal", "test", "unnamed", "broker", "controller")

Row = tuple[str, str, int, int, str]


def read_request_logs(folder: Path) -> set[Row]:
    """The rows in the request logs of brokers."""
    rows = set()
    for path in folder.glob("*.tsv"):
        for line in path.read_text().splitlines():
            software, version, key, api_version, outcome = line.split("\t")
            if software.startswith("aiokafka"):
                software, version = "aiokafka", ""  # it has its name only in client ids
            if not software.startswith(INTERNAL_CLIENTS) and int(key) in set(ApiKey):
                rows.add((software, version, int(key), int(api_version), outcome))
    return rows


def read_kept_rows() -> set[Row]:
    rows = set()
    for line in KEPT.read_text().splitlines() if KEPT.exists() else ():
        software, version, key, api_version, outcome = line.split("\t")
        rows.add((software, version, int(key), int(api_version), outcome))
    return rows


def write_kept_rows(rows: set[Row]) -> None:
    KEPT.write_text("".join("\t".join(map(str, row)) + "\n" for row in sorted(rows)))


def page(rows: set[Row]) -> str:
    """The whole document."""
    lines = [
        "# What Kafka Lite serves",
        "",
        "Made by `scripts/support_matrix.py` from the registration lines in `src/shoal/lite/api/`.",
        "",
        "| API | key | versions served |",
        "|---|---|---|",
    ]
    for key, api in sorted(APIS.items()):
        versions = f"{api.least} to {api.most}"
        if api.advertised_from is not None:
            versions += f" (advertised from {api.advertised_from})"
        lines.append(f"| {_name(key)} | {int(key)} | {versions} |")
    lines += ["", "## What clients asked for and got", ""]
    lines.append("Versions of requests, as sent in the interop tests; all were answered unless it")
    lines += ["says refused.", ""]
    clients = sorted({(software, version) for software, version, *_ in rows})
    if clients:
        lines += _client_table(clients, rows)
    return "\n".join([*lines, ""])


def _client_table(clients: list[tuple[str, str]], rows: set[Row]) -> list[str]:
    cells: dict[tuple[int, tuple[str, str]], list[str]] = defaultdict(list)
    for software, version, key, api_version, outcome in sorted(rows, key=lambda row: row[3]):
        mark = "" if outcome == "served" else " refused"
        cells[key, (software, version)].append(f"{api_version}{mark}")
    heads = [f"{software} {version}".strip() for software, version in clients]
    table = [f"| API | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for key in sorted({key for _, _, key, _, _ in rows}):
        cells_of_row = [", ".join(cells.get((key, client), ["-"])) for client in clients]
        table.append(f"| {_name(key)} | {' | '.join(cells_of_row)} |")
    return table


def _name(key: int) -> str:
    return "".join(word.capitalize() for word in ApiKey(key).name.split("_"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=Path, help="the folder of the request logs")
    folder = parser.parse_args().requests
    if folder is not None:
        write_kept_rows(read_request_logs(folder))
    PAGE.write_text(page(read_kept_rows()))


if __name__ == "__main__":
    main()
