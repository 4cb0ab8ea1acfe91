"""Array types of the kernels, and the array operations that numpy lacks."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Array = npt.NDArray[Any]
Rows = dict[str, Array]  # columns of one table, all of one length

NONE: Final = -1  # "no offset", "no time", as in the ledgers
LARGEST: Final = 2**63 - 1
_TABLE_SIZE: Final = 1 << 20


def ints(values: Sequence[int] = ()) -> Ints:
    return np.array(values, dtype=np.int64)


def full_ints(size: int, value: int = NONE) -> Ints:
    return np.full(size, value, dtype=np.int64)


def repeat_value(value: Any, size: int, kind: Any) -> Array:
    """Return a column of one value, which takes no memory; it cannot be written to."""
    return np.broadcast_to(np.array(value, dtype=kind), size)


def is_repeated_value(values: Array) -> bool:
    """Whether this is a column of `repeat_value`. Others with one value only are not found."""
    return values.strides == (0,)


def concat_ints(arrays: Sequence[Array]) -> Ints:
    """Concatenate the arrays as 64-bit integers."""
    if len(arrays) == 1:
        return arrays[0].astype(np.int64, copy=False)
    return np.concatenate(arrays, dtype=np.int64) if arrays else ints()


def starts_of_groups(sorted_values: Array) -> Ints:
    """Return the index at which each run of equal values begins."""
    if not len(sorted_values):
        return ints()
    changes = np.flatnonzero(sorted_values[1:] != sorted_values[:-1]) + 1
    return np.concatenate([[0], changes])


def ends_of_groups(sorted_values: Array) -> Ints:
    """Return the index of the last element of each run of equal values."""
    starts = starts_of_groups(sorted_values)
    return np.append(starts[1:], len(sorted_values)) - 1 if len(starts) else starts


def highest_by_pair(first: Ints, second: Ints, value: Ints) -> Ints:
    """Return rows of (first, second, largest value), one for each pair that occurs.

    The numbers of both columns are small.
    """
    if not len(first):
        return np.empty((0, 3), dtype=np.int64)
    span = int(second.max()) + 1
    pairs = second if is_repeated_value(first) and not first[0] else first * span + second
    if int(pairs.max()) < _TABLE_SIZE:
        table = np.full(int(pairs.max()) + 1, -LARGEST)
        np.maximum.at(table, pairs, value)
        found = np.flatnonzero(table != -LARGEST)
        return np.stack([found // span, found % span, table[found]], axis=1)
    order = np.lexsort((value, pairs))
    last = order[ends_of_groups(pairs[order])]
    return np.stack([first[last], second[last], value[last]], axis=1)


def counts_of_values(values: Ints) -> tuple[Ints, Ints]:
    """Return the distinct values in ascending order, and how often each occurs."""
    if not len(values):
        return ints(), ints()
    low, high = int(values.min()), int(values.max())
    if high - low > 4 * len(values) + 65536:
        distinct, counts = np.unique(values, return_counts=True)
        return distinct, counts.astype(np.int64)
    counts = np.bincount(values - low)
    present = np.flatnonzero(counts)
    return present + low, counts[present].astype(np.int64)


def sum_by_key(keys: Ints, values: Ints) -> tuple[Ints, Ints]:
    """Return the distinct keys in ascending order, and the sum of the values of each."""
    order = np.argsort(keys, kind="stable")
    keys, values = keys[order], values[order]
    starts = starts_of_groups(keys)
    if not len(starts):
        return ints(), ints()
    return keys[starts], np.add.reduceat(values, starts)
