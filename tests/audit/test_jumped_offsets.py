"""Which messages a reader may jump over, because their transaction was aborted or is open."""

from collections.abc import Sequence
from random import Random

import numpy as np
import pytest

from shoal.audit.read.read import PRODUCER_NUMBER, MemoryPiece, Vocabulary
from shoal.audit.rules import offsets
from shoal.audit.tasks import Jump, OffsetCell
from shoal.model.ledger import ABORTED, COMMITTED, OPEN, TABLES

Message = tuple[str, str, int, int]  # producer, topic, lane, sequence
NAMES = ("p", "q", "t", "u")


def draw_message(random: Random) -> Message:
    return random.choice("pq"), random.choice("tu"), random.randrange(3), random.randrange(40)


def make_piece(members: Sequence[tuple[Message, int]]) -> MemoryPiece:
    """Rows of the table `transactions`."""
    columns = {
        name: np.zeros(len(members), dtype=np.int32 if kind == "dictionary" else np.int64)
        for name, kind in TABLES["transactions"]
    }
    for row, ((producer, topic, lane, sequence), fate) in enumerate(members):
        columns["producer"][row], columns["topic"][row] = NAMES.index(producer), NAMES.index(topic)
        columns["lane"][row], columns["sequence"][row] = lane, sequence
        columns["fate"][row] = fate
    return MemoryPiece("transactions", columns, NAMES, 0)


@pytest.mark.parametrize("seed", range(20))
def test_only_aborted_and_open_messages_in_a_jump_are_hidden(seed: int) -> None:
    random = Random(seed)
    members = [
        (draw_message(random), random.choice((COMMITTED, ABORTED, OPEN))) for _ in range(300)
    ]
    pieces = tuple(make_piece(members[at : at + 60]) for at in range(0, 300, 60))
    bounds = [sorted(random.sample(range(100), 2)) for _ in range(4)]
    jumps = tuple(Jump(n, "t", 0, low, high) for n, (low, high) in enumerate(bounds))
    held = [(draw_message(random), random.randrange(100)) for _ in range(200)]
    words = Vocabulary()
    rows = {
        PRODUCER_NUMBER: np.array([words.producer_code(m[0], 0) for m, _ in held]),
        "topic": np.array([words.code(m[1]) for m, _ in held]),
        "lane": np.array([m[2] for m, _ in held]),
        "sequence": np.array([m[3] for m, _ in held]),
        "offset": np.array([offset for _, offset in held]),
    }
    task = OffsetCell("target", ((0, 100),), (), (), (), pieces, jumps)

    def is_hidden(message: Message, offset: int) -> bool:
        fates = {fate for member, fate in members if member == message}
        is_jumped = any(low < offset < high for low, high in bounds)
        return is_jumped and bool(fates) and COMMITTED not in fates

    found = offsets._is_hidden(task, rows, words).tolist()
    assert found == [is_hidden(*each) for each in held]
    assert 0 < sum(found) < len(held)


def test_few_rows_of_transactions_are_kept() -> None:
    """One reader jumped over one message; what is kept of 10,000 is what concerns it."""
    wanted: Message = ("p", "t", 1, 20)
    members = [(draw_message(Random(n)), COMMITTED) for n in range(10_000)]
    pieces = (make_piece(members), make_piece([(wanted, ABORTED)]))
    words = Vocabulary()
    rows = {
        PRODUCER_NUMBER: np.array([words.producer_code("p", 0)]),
        "topic": np.array([words.code("t")]),
        "lane": np.array([1]),
        "sequence": np.array([20]),
    }
    task = OffsetCell("target", ((0, 100),), (), (), (), pieces, (Jump(0, "t", 0, 4, 6),))
    kept = offsets._read_members(task, rows, words)
    assert len(kept["fate"]) == 1 + sum(member == wanted for member, _ in members)
