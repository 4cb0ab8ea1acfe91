"""The documents of the public formats name everything that is in them."""

from pathlib import Path

from shoal.model.ledger import TABLES
from shoal.pipeline.tables import SCHEMAS

DOCS = Path(__file__).parents[2] / "docs" / "reference"


def test_every_table_and_column_of_ledgers_is_documented() -> None:
    text = (DOCS / "ledgers.md").read_text(encoding="utf-8")
    sections = {part.split("`", 1)[0]: part for part in text.split("\n## `")[1:]}
    assert set(sections) == set(TABLES)
    for table, columns in TABLES.items():
        assert not {name for name, _ in columns if f"| `{name}` |" not in sections[table]}


def test_every_table_and_column_of_results_is_documented() -> None:
    text = (DOCS / "results.md").read_text(encoding="utf-8")
    rows = {line.split("`")[1]: line for line in text.splitlines() if line.startswith("| `")}
    assert set(rows) == set(SCHEMAS)
    for table, schema in SCHEMAS.items():
        assert not {name for name in schema.names if f"`{name}`" not in rows[table]}
