"""The whole table of what becomes of a partition whose topics may be other ones; pure."""

from dataclasses import replace
from itertools import product

import pytest

from shoal.mirror.copy.delivery.names import (
    AT_LEAST_ONCE,
    AUTO,
    COMPARE_AND_APPEND,
    IDEMPOTENT,
    TRANSACTIONAL,
)
from shoal.mirror.offsets.checkpoints import Checkpoint
from shoal.mirror.routes import Route
from shoal.mirror.watch.generations import (
    GenerationAction,
    GenerationDecision,
    SourceState,
    TargetState,
    adopt_ids,
    begin_generation,
    decide,
    has_other_id,
    needs_source_end,
)
from shoal.model.topics import TopicPartition

ROUTE = Route(TopicPartition("t", 0), TopicPartition("t", 0))
KNOWN = Checkpoint("cluster", "S1", "T1", IDEMPOTENT, 100, 100, source_epoch=5, generation=1)
SAME_SOURCE = SourceState("cluster", "S1")
SAME_TARGET = TargetState("T1", 0, 100, holds_data=True)
EMPTY = TargetState("T2", 0, 0, holds_data=False)
STOCK = (AT_LEAST_ONCE, IDEMPOTENT, TRANSACTIONAL)
DELIVERIES = (*STOCK, COMPARE_AND_APPEND)

BEGIN, CONTINUE, REFUSE = GenerationAction.BEGIN, GenerationAction.CONTINUE, GenerationAction.REFUSE
NEW_SOURCE, NEW_TARGET = GenerationAction.COPY_NEW_SOURCE, GenerationAction.FILL_NEW_TARGET


def _decide(
    known: Checkpoint | None, source: SourceState, target: TargetState
) -> GenerationDecision:
    return decide(ROUTE, known, source, target, wanted_delivery=AUTO)


# What the source is: the same, another one, or without an id on one side.
SOURCES = {
    "same": (KNOWN, SAME_SOURCE),
    "another": (KNOWN, SourceState("cluster", "S2")),
    "id appears": (
        replace(KNOWN, source_topic_id=None),
        SourceState("cluster", "S1", end=100, leader_epoch=5),
    ),
    "id appears, log grew": (
        replace(KNOWN, source_topic_id=None),
        SourceState("cluster", "S1", end=900, leader_epoch=7),
    ),
    "id appears, shorter": (
        replace(KNOWN, source_topic_id=None),
        SourceState("cluster", "S1", end=99, leader_epoch=5),
    ),
    "id appears, shorter, lower epoch": (
        replace(KNOWN, source_topic_id=None),
        SourceState("cluster", "S1", end=99, leader_epoch=0),
    ),
    # A broker that lags behind may tell an old epoch: alone it proves nothing.
    "id appears, lower epoch": (
        replace(KNOWN, source_topic_id=None),
        SourceState("cluster", "S1", end=100, leader_epoch=4),
    ),
    "id is not told": (KNOWN, SourceState("cluster", None, end=100)),
    "never had an id": (replace(KNOWN, source_topic_id=None), SourceState("cluster", None)),
    "another cluster": (KNOWN, SourceState("other", "S1")),
    "another topic": (replace(KNOWN, source_topic="u"), SAME_SOURCE),
}
# What the target is.
TARGETS = {
    "same": ("T1", SAME_TARGET),
    "same, more": ("T1", replace(SAME_TARGET, end=140)),
    "same, all deleted by retention": ("T1", replace(SAME_TARGET, start=100, holds_data=False)),
    "id appears": (None, SAME_TARGET),
    "id appears, shorter": (None, replace(SAME_TARGET, end=60)),
    "id appears, empty": (None, replace(SAME_TARGET, end=0, holds_data=False)),
    "id is not told": ("T1", replace(SAME_TARGET, topic_id=None)),
    "another, empty": ("T1", EMPTY),
    "another, only aborted": ("T1", replace(EMPTY, end=10)),
    "another, foreign data": ("T1", replace(EMPTY, end=10, holds_data=True)),
    "another, own data": ("T1", replace(EMPTY, end=10, holds_data=True, is_own_data=True)),
}
_FOLLOWS = {
    "same": CONTINUE,
    "another": NEW_SOURCE,
    "id appears": CONTINUE,
    "id appears, log grew": CONTINUE,
    "id appears, shorter": REFUSE,
    "id appears, shorter, lower epoch": NEW_SOURCE,
    "id appears, lower epoch": CONTINUE,
    "id is not told": CONTINUE,
    "never had an id": CONTINUE,
    "another cluster": REFUSE,
    "another topic": REFUSE,
}
_OF_OTHERS = ("another cluster", "another topic")


def _find_expected(source: str, target: str, delivery: str) -> GenerationAction:
    if target in ("another, foreign data", "id appears, shorter"):
        return REFUSE
    if target in ("another, empty", "another, only aborted", "another, own data"):
        return BEGIN if source in _OF_OTHERS else NEW_TARGET
    if target == "id appears, empty":
        return BEGIN if source in _OF_OTHERS else NEW_TARGET
    action = _FOLLOWS[source]
    # Offsets are taken by the former generation.
    return REFUSE if action is NEW_SOURCE and delivery == COMPARE_AND_APPEND else action


@pytest.mark.parametrize("source", SOURCES)
def test_every_situation_has_its_decision(source: str) -> None:
    for target, delivery in product(TARGETS, DELIVERIES):
        known, source_now = SOURCES[source]
        target_id, target_now = TARGETS[target]
        known = replace(known, target_topic_id=target_id, delivery=delivery)
        decision = _decide(known, source_now, target_now)
        situation = (source, target, delivery)
        assert decision.action is _find_expected(*situation), situation
        # Nothing but a plain continuation or begin is silent, and a refusal has a remedy.
        assert bool(decision.reason) is (decision.action not in (BEGIN, CONTINUE)), situation
        assert bool(decision.remedy) is (decision.action is REFUSE), situation


@pytest.mark.parametrize(("holds_data", "action"), [(False, BEGIN), (True, REFUSE)])
def test_a_target_that_no_checkpoint_tells_of(holds_data: bool, action: GenerationAction) -> None:
    target = TargetState("T1", 0, 50, holds_data)
    assert _decide(None, SAME_SOURCE, target).action is action


def test_a_new_source_may_follow_at_kept_offsets_if_nothing_was_copied() -> None:
    known = replace(KNOWN, delivery=COMPARE_AND_APPEND, source_offset=0, target_offset=0)
    target = TargetState("T1", 0, 0, holds_data=False)
    assert _decide(known, SourceState("cluster", "S2"), target).action is NEW_SOURCE


@pytest.mark.parametrize(
    ("wanted", "used", "action"),
    [
        (IDEMPOTENT, IDEMPOTENT, CONTINUE),
        (IDEMPOTENT, TRANSACTIONAL, CONTINUE),
        (AUTO, AT_LEAST_ONCE, CONTINUE),
        (TRANSACTIONAL, IDEMPOTENT, REFUSE),
        (IDEMPOTENT, AT_LEAST_ONCE, REFUSE),
    ],
)
def test_a_delivery_that_cannot_continue_another(
    wanted: str, used: str, action: GenerationAction
) -> None:
    known = replace(KNOWN, delivery=used)
    decision = decide(ROUTE, known, SAME_SOURCE, SAME_TARGET, wanted_delivery=wanted)
    assert decision.action is action


@pytest.mark.parametrize(
    ("known", "now", "is_other"),
    [("a", "a", False), ("a", "b", True), (None, "a", False), ("a", None, False)],
)
def test_only_two_ids_prove_another_topic(
    known: str | None, now: str | None, is_other: bool
) -> None:
    assert has_other_id(known, now) is is_other
    checkpoint = replace(KNOWN, source_topic_id=known)
    assert needs_source_end(checkpoint, now) is ((known is None) != (now is None))


def test_ids_are_adopted_and_never_forgotten() -> None:
    unknown = replace(KNOWN, source_topic_id=None, target_topic_id=None)
    adopted = adopt_ids(unknown, SAME_SOURCE, SAME_TARGET)
    assert (adopted.source_topic_id, adopted.target_topic_id) == ("S1", "T1")
    untold = adopt_ids(KNOWN, SourceState("cluster", None), replace(SAME_TARGET, topic_id=None))
    assert untold == KNOWN


def test_a_new_generation_begins_behind_the_former_one_with_the_same_producer() -> None:
    known = replace(KNOWN, producer_id=7, producer_epoch=1, sequence=40, mirror_epoch=3)
    new = begin_generation(known, SourceState("cluster", "S2"), first=20)
    assert (new.source_topic_id, new.source_offset, new.began_at) == ("S2", 20, 20)
    assert (new.generation, new.generation_target_offset, new.target_offset) == (2, 100, 100)
    assert (new.identity, new.sequence, new.mirror_epoch) == (known.identity, 40, 3)
    # Epochs of another topic say nothing about this one.
    assert new.source_epoch == -1


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_no_start_continues_behind_a_hole_of_the_target(delivery: str) -> None:
    known = replace(KNOWN, delivery=delivery, target_lost=True)
    # However much was written behind it since.
    for end in (50, 100, 900):
        decision = _decide(known, SAME_SOURCE, replace(SAME_TARGET, end=end))
        assert decision.action is REFUSE
        assert "has lost records" in decision.reason
        assert decision.remedy
    assert _decide(known, SAME_SOURCE, EMPTY).action is NEW_TARGET
