"""What becomes of a mirrored partition when a topic is created again, or gets an id; pure.

A topic is known by its id. Another id is another *generation*: never a continuation.

    known   target               source              what is done
    no      empty                any                 begin
    no      holds records        any                 refuse
    yes     another, empty       any                 copy the source again from where it began
    yes     another, with data   any                 refuse, unless this process wrote the data
    yes     the same             the same            continue
    yes     the same, with loss  any                 refuse
    yes     the same             another             copy it from its start, behind the old one;
                                                     refuse where offsets are kept
    yes     the same             another cluster's   refuse

Rules:
- An id that is missing on one side (clusters before 2.8, or the answer of an old broker during
  an upgrade) says nothing. Then the log decides: if it still reaches what was copied, it is the
  same topic, and the id is adopted.
- A shorter log without comparable ids was truncated or created again, and nothing tells which:
  refused. Only a leader epoch below the one that was read proves that it is another topic.
- A new generation of the source follows the old one in the same target topic, so that a mirror
  that nobody watches continues. It is announced, shown in the status, and has its own offset map;
  `generation_target_offset` is where it begins at the target.
- With compare-and-append an offset has one record only, so a second generation has no place.
- A target topic that is another one and empty is filled again: its records are gone, and those
  of the source are all that is left.
"""

from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Final
from uuid import UUID

from shoal.mirror.copy.delivery.names import COMPARE_AND_APPEND, may_go_on
from shoal.mirror.offsets.checkpoints import Checkpoint
from shoal.mirror.routes import Route

SOURCE_CREATED_AGAIN: Final = "the source topic was deleted and created again"
TARGET_CREATED_AGAIN: Final = "the target's topic was deleted and created again"


class Action(Enum):
    """What is to be done with one partition."""

    BEGIN = auto()
    CONTINUE = auto()
    COPY_NEW_SOURCE = auto()  # from its start, behind what the target has
    FILL_NEW_TARGET = auto()  # from where the copy began
    REFUSE = auto()


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to be done, and why."""

    action: Action
    reason: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class SourceNow:
    """The source's side of a partition; `end` is None where it was not asked for."""

    cluster_id: str | None
    topic_id: str | None
    end: int | None = None
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class TargetNow:
    """The target's side of a partition."""

    topic_id: str | None
    start: int
    end: int
    holds_data: bool  # records of users that are not aborted
    is_own_data: bool = False  # all of it was written by this process


@dataclass(frozen=True, slots=True)
class Lineage:
    """Between which topics a partition is copied, and the how-manieth copy this is."""

    source_topic_id: str | None = None
    target_topic_id: str | None = None
    generation: int = 1
    reason: str = ""  # of the last new generation
    target_offset: int = 0  # where this generation begins at the target


def has_other_id(known: str | UUID | None, now: str | UUID | None) -> bool:
    """Whether two ids prove that a topic is another one."""
    return known is not None and now is not None and str(known) != str(now)


def needs_source_end(known: Checkpoint | None, topic_id: str | None) -> bool:
    """Whether ids do not tell if the source's topic is the one that was copied."""
    return known is not None and (known.source_topic_id is None) != (topic_id is None)


def decide(
    route: Route,
    known: Checkpoint | None,
    source: SourceNow,
    target: TargetNow,
    *,
    wanted_delivery: str,
) -> Decision:
    """What to do with a partition, by what was known of it and what is there now."""
    if known is None:
        return _refuse_data(route, target) if target.holds_data else Decision(Action.BEGIN)
    is_other = _is_other_target(known, target)
    if is_other is None:
        return Decision(
            Action.REFUSE,
            f"the target's partition {route.target} ends at {target.end}, below offset "
            f"{known.target_offset} that was written: it has lost records or was created again",
            "compare both with `shoal mirror verify`, then delete the target's topic: it is "
            "filled again",
        )
    if is_other:
        return _into_other_target(route, known, source, target)
    if (refusal := _refuse_other_owner(route, known, source, wanted_delivery)) is not None:
        return refusal
    if known.target_lost:
        return Decision(
            Action.REFUSE,
            f"the target's partition {route.target} has lost records that it acknowledged, which "
            "this mirror noticed at an earlier start",
            "compare both with `shoal mirror verify`, then delete the target's topic: it is "
            "filled again",
        )
    return _from_source(route, known, source, target)


def _is_other_target(known: Checkpoint, target: TargetNow) -> bool | None:
    """None where nothing tells."""
    if known.target_topic_id is not None and target.topic_id is not None:
        return known.target_topic_id != target.topic_id
    if target.end >= known.target_offset:
        return False
    return None if target.holds_data else True


def _into_other_target(
    route: Route, known: Checkpoint, source: SourceNow, target: TargetNow
) -> Decision:
    if target.holds_data and not target.is_own_data:
        return _refuse_data(route, target)
    is_same_source = known.source_cluster == source.cluster_id and (
        (known.source_topic or route.target.topic) == route.source.topic
    )
    if not is_same_source:
        return Decision(Action.BEGIN)
    return Decision(Action.FILL_NEW_TARGET, TARGET_CREATED_AGAIN)


def _refuse_data(route: Route, target: TargetNow) -> Decision:
    return Decision(
        Action.REFUSE,
        f"the target's partition {route.target} is not empty: it holds "
        f"{target.end - target.start} offsets, and this mirror did not write them",
        "delete or rename the target's topic, or give the --name under which it was mirrored",
    )


def _refuse_other_owner(
    route: Route, known: Checkpoint, source: SourceNow, wanted_delivery: str
) -> Decision | None:
    tp = route.target
    if known.source_cluster != source.cluster_id:
        return Decision(
            Action.REFUSE,
            f"the target's partition {tp} was mirrored from another cluster, "
            f"{known.source_cluster}",
            "mirror into another topic, or under another --name",
        )
    if (known.source_topic or tp.topic) != route.source.topic:
        return Decision(
            Action.REFUSE,
            f"the target's partition {tp} was mirrored from another topic, "
            f"{known.source_topic or tp.topic}",
            "let each topic of the source have a topic of its own at the target",
        )
    if not may_go_on(wanted_delivery, known.delivery):
        return Decision(
            Action.REFUSE,
            f"the target's partition {tp} was mirrored by {known.delivery}",
            f"continue with --delivery {known.delivery}",
        )
    return None


def _from_source(route: Route, known: Checkpoint, source: SourceNow, target: TargetNow) -> Decision:
    if has_other_id(known.source_topic_id, source.topic_id):
        return _copy_new_source(route, known, target)
    if source.end is None or known.source_offset <= source.end:
        return Decision(Action.CONTINUE)
    if 0 <= source.leader_epoch < known.source_epoch:
        return _copy_new_source(route, known, target)
    return Decision(
        Action.REFUSE,
        f"the source's partition {route.source} ends at {source.end}, below offset "
        f"{known.source_offset} that was copied, and its topic had no id then: it was truncated, "
        "or deleted and created again",
        "delete the target's topic: the source is copied into it again from its start",
    )


def _copy_new_source(route: Route, known: Checkpoint, target: TargetNow) -> Decision:
    if known.delivery == COMPARE_AND_APPEND and target.end > 0:
        return Decision(
            Action.REFUSE,
            f"{SOURCE_CREATED_AGAIN}: {route.target} has records of the former one at offsets "
            "that compare-and-append needs for the new one",
            "delete the target's topic: the new source topic is copied into it from its start",
        )
    return Decision(Action.COPY_NEW_SOURCE, SOURCE_CREATED_AGAIN)


def adopt_ids(known: Checkpoint, source: SourceNow, target: TargetNow) -> Checkpoint:
    """The checkpoint of a partition that continues, with ids that were not known before."""
    return replace(
        known,
        source_topic_id=known.source_topic_id or source.topic_id,
        target_topic_id=known.target_topic_id or target.topic_id,
    )


def begin_generation(known: Checkpoint, source: SourceNow, *, first: int) -> Checkpoint:
    """The checkpoint with which the copy of a new source topic begins at its first offset."""
    return replace(
        known,
        source_topic_id=source.topic_id,
        source_offset=first,
        source_epoch=-1,
        source_epochs=(),
        generation=known.generation + 1,
        generation_reason=SOURCE_CREATED_AGAIN,
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
