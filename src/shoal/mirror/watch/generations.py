"""Decides what happens to a mirrored partition when a topic is recreated or gets an id; pure.

A topic is identified by its id. A different id is a different *generation*, never a continuation.

    known   target                  source              decision
    no      empty                   any                 begin
    no      has records             any                 refuse
    yes     recreated, empty        any                 copy the source again from where it began
    yes     recreated, with data    any                 refuse, unless this process wrote the data
    yes     the same                the same            continue
    yes     the same, with loss     any                 refuse
    yes     the same                recreated           copy it from its start, behind the old one;
                                                        refuse where offsets are kept
    yes     the same                another cluster's   refuse

Rules:
- A missing id on one side (clusters before 2.8, or the response of an old broker during an upgrade)
  proves nothing. Then the log decides: if it still reaches what was copied, it is the same topic,
  and the id is adopted.
- A shorter log without comparable ids was truncated or recreated, and nothing shows which: it is
  refused. Only a leader epoch below the one that was read proves that the topic was recreated.
- A new source generation is appended to the same target topic, so that an unattended mirror
  continues. It is logged, shown in the status, and has its own offset map;
  `generation_target_offset` is where it begins at the target.
- With compare-and-append each offset has only one record, so there is no room for a second
  generation.
- A recreated, empty target topic is filled again: its records are gone, and only the source still
  has them.
"""

from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Final
from uuid import UUID

from shoal.mirror.copy.delivery.names import COMPARE_AND_APPEND, can_continue
from shoal.mirror.offsets.checkpoints import Checkpoint
from shoal.mirror.routes import Route

SOURCE_CREATED_AGAIN: Final = "the source topic was deleted and created again"
# Both are written to checkpoints as `generation_reason`.
TARGET_CREATED_AGAIN: Final = "the target's topic was deleted and created again"


class GenerationAction(Enum):
    """How to proceed with one partition."""

    BEGIN = auto()
    CONTINUE = auto()
    COPY_NEW_SOURCE = auto()  # from its start, after the records of the target
    FILL_NEW_TARGET = auto()  # from where the copy began
    REFUSE = auto()


@dataclass(frozen=True, slots=True)
class GenerationDecision:
    """How to proceed, and why."""

    action: GenerationAction
    reason: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class SourceState:
    """The source side of a partition; `end` is None where it was not read."""

    cluster_id: str | None
    topic_id: str | None
    end: int | None = None
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class TargetState:
    """The target side of a partition."""

    topic_id: str | None
    start: int
    end: int
    holds_data: bool  # user records that are not aborted
    is_own_data: bool = False  # all of it was written by this process


@dataclass(frozen=True, slots=True)
class Lineage:
    """The topic ids between which a partition is copied, and the number of the copy."""

    source_topic_id: str | None = None
    target_topic_id: str | None = None
    generation: int = 1
    reason: str = ""  # why this generation began
    target_offset: int = 0  # at which this generation begins


def has_other_id(known: str | UUID | None, now: str | UUID | None) -> bool:
    """Whether two ids prove that a topic was recreated."""
    return known is not None and now is not None and str(known) != str(now)


def needs_source_end(known: Checkpoint | None, topic_id: str | None) -> bool:
    """Whether the source's log end is needed, because topic ids cannot be compared."""
    return known is not None and (known.source_topic_id is None) != (topic_id is None)


def decide(
    route: Route,
    known: Checkpoint | None,
    source: SourceState,
    target: TargetState,
    *,
    wanted_delivery: str,
) -> GenerationDecision:
    """Decide how to proceed with a partition, from its checkpoint and the current state."""
    if known is None:
        return (
            _refuse_data(route, target)
            if target.holds_data
            else GenerationDecision(GenerationAction.BEGIN)
        )
    is_other = _is_other_target(known, target)
    if is_other is None:
        return GenerationDecision(
            GenerationAction.REFUSE,
            f"the target partition {route.target} ends at offset {target.end}, below the written "
            f"offset {known.target_offset}: it has lost records or was created again",
            "compare both topics with `shoal mirror verify`, then delete the target topic: it is "
            "filled again",
        )
    if is_other:
        return _decide_other_target(route, known, source, target)
    if (refusal := _refuse_other_owner(route, known, source, wanted_delivery)) is not None:
        return refusal
    if known.target_lost:
        return GenerationDecision(
            GenerationAction.REFUSE,
            f"the target partition {route.target} has lost records that it acknowledged; this "
            "mirror noticed it at an earlier start",
            "compare both topics with `shoal mirror verify`, then delete the target topic: it is "
            "filled again",
        )
    return _decide_by_source(route, known, source, target)


def _is_other_target(known: Checkpoint, target: TargetState) -> bool | None:
    """Whether the target topic was recreated; None if that cannot be determined."""
    if known.target_topic_id is not None and target.topic_id is not None:
        return known.target_topic_id != target.topic_id
    if target.end >= known.target_offset:
        return False
    return None if target.holds_data else True


def _decide_other_target(
    route: Route, known: Checkpoint, source: SourceState, target: TargetState
) -> GenerationDecision:
    if target.holds_data and not target.is_own_data:
        return _refuse_data(route, target)
    is_same_source = known.source_cluster == source.cluster_id and (
        (known.source_topic or route.target.topic) == route.source.topic
    )
    if not is_same_source:
        return GenerationDecision(GenerationAction.BEGIN)
    return GenerationDecision(GenerationAction.FILL_NEW_TARGET, TARGET_CREATED_AGAIN)


def _refuse_data(route: Route, target: TargetState) -> GenerationDecision:
    return GenerationDecision(
        GenerationAction.REFUSE,
        f"the target partition {route.target} is not empty: it has "
        f"{target.end - target.start} offsets, and this mirror did not write them",
        "delete the target topic, mirror into another one, or give the --name of the mirror that "
        "wrote it",
    )


def _refuse_other_owner(
    route: Route, known: Checkpoint, source: SourceState, wanted_delivery: str
) -> GenerationDecision | None:
    tp = route.target
    if known.source_cluster != source.cluster_id:
        return GenerationDecision(
            GenerationAction.REFUSE,
            f"the target partition {tp} was mirrored from another cluster, {known.source_cluster}",
            "mirror into another topic, or with another --name",
        )
    if (known.source_topic or tp.topic) != route.source.topic:
        return GenerationDecision(
            GenerationAction.REFUSE,
            f"the target partition {tp} was mirrored from another topic, "
            f"{known.source_topic or tp.topic}",
            "mirror each source topic into its own target topic",
        )
    if not can_continue(wanted_delivery, known.delivery):
        return GenerationDecision(
            GenerationAction.REFUSE,
            f"the target partition {tp} was mirrored with --delivery {known.delivery}",
            f"continue with --delivery {known.delivery}",
        )
    return None


def _decide_by_source(
    route: Route, known: Checkpoint, source: SourceState, target: TargetState
) -> GenerationDecision:
    if has_other_id(known.source_topic_id, source.topic_id):
        return _copy_new_source(route, known, target)
    if source.end is None or known.source_offset <= source.end:
        return GenerationDecision(GenerationAction.CONTINUE)
    if 0 <= source.leader_epoch < known.source_epoch:
        return _copy_new_source(route, known, target)
    return GenerationDecision(
        GenerationAction.REFUSE,
        f"the source partition {route.source} ends at offset {source.end}, below the copied offset "
        f"{known.source_offset}, and its topic had no id then: it was truncated, or deleted and "
        "created again",
        "delete the target topic: the source is copied into it again from its start",
    )


def _copy_new_source(route: Route, known: Checkpoint, target: TargetState) -> GenerationDecision:
    if known.delivery == COMPARE_AND_APPEND and target.end > 0:
        return GenerationDecision(
            GenerationAction.REFUSE,
            f"{SOURCE_CREATED_AGAIN}: the target partition {route.target} has records of the "
            "earlier topic at offsets that compare-and-append needs for the new one",
            "delete the target topic: the new source topic is copied into it from its start",
        )
    return GenerationDecision(GenerationAction.COPY_NEW_SOURCE, SOURCE_CREATED_AGAIN)


def adopt_ids(known: Checkpoint, source: SourceState, target: TargetState) -> Checkpoint:
    """Return the checkpoint of a partition that continues, with topic ids that were unknown."""
    return replace(
        known,
        source_topic_id=known.source_topic_id or source.topic_id,
        target_topic_id=known.target_topic_id or target.topic_id,
    )


def begin_generation(known: Checkpoint, source: SourceState, *, first: int) -> Checkpoint:
    """Return the checkpoint with which the copy of a recreated source topic begins."""
    return replace(
        known,
        source_topic_id=source.topic_id,
        source_offset=first,
        source_epoch=-1,
        source_epochs=(),
        generation=known.generation + 1,
        # Nothing shows what the earlier topic had behind that.
        generation_reason=f"{SOURCE_CREATED_AGAIN}; the earlier one was copied to its offset "
        f"{known.source_offset}",
        generation_target_offset=known.target_offset,
        began_at=first,
    )


def lineage_of(checkpoint: Checkpoint) -> Lineage:
    return Lineage(
        checkpoint.source_topic_id,
        checkpoint.target_topic_id,
        checkpoint.generation,
        checkpoint.generation_reason,
        checkpoint.generation_target_offset,
    )
