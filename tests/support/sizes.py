"""Two sizes of one test: a quick one for `make test`, and a long one for `make test-long`."""

from collections.abc import Callable, Collection, Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st


def size_cases(name: str, *, quick: object, long: object) -> pytest.MarkDecorator:
    """Run a test with a small value in `make test`, and with a large one in `make test-long`."""
    values = [
        pytest.param(quick, id=f"quick-{quick}"),
        pytest.param(long, id=f"long-{long}", marks=pytest.mark.long),
    ]
    return pytest.mark.parametrize(name, values)


def mark_long(names: Iterable[str], *, quick: Collection[str]) -> list[object]:
    """The values of a parameter: those in `quick` for every run, the others for the long one."""
    values = list(names)
    unknown = set(quick) - set(values)
    assert not unknown, f"no such values: {sorted(unknown)}"
    return [
        value if value in quick else pytest.param(value, marks=pytest.mark.long) for value in values
    ]


def try_examples(
    share: float, check: Callable[..., None], **strategies: st.SearchStrategy[Any]
) -> None:
    """Check examples of the strategies: this share of as many as the profile says."""
    count = max(1, int((settings.default or settings()).max_examples * share))
    settings(max_examples=count)(given(**strategies)(check))()
