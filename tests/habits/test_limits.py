"""The list of limits stays one page of short lines; what explains them is on other pages."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "limits.md"
MOST_WORDS = 750
LONGEST_LINE = 110


def test_the_list_is_one_page_of_short_lines() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert len(text.split()) <= MOST_WORDS
    limits = [line for line in text.splitlines() if line.startswith("- ")]
    assert len(limits) > 40
    assert [line for line in limits if len(line) > LONGEST_LINE] == []


def test_each_part_links_to_its_explanation() -> None:
    parts = PAGE.read_text(encoding="utf-8").split("\n## ")[1:]
    explained = [
        part for part in parts if re.search(r"^\[Explained\]\(.+#limits\)$", part, re.MULTILINE)
    ]
    assert [part.splitlines()[0] for part in parts if part not in explained] == ["Platforms"]
