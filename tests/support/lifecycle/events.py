"""How each event of the matrix is made: `SCRIPTS`, by the names of `cells.EVENTS`.

Records are named by generation: `a` was copied before the event, `t` is a tail that the source
will lose, `b` follows the event, `x` is written to the target by somebody else.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from confluent_kafka import KafkaException

from support.lifecycle.cells import When
from support.lifecycle.judging import Fate
from support.lifecycle.play_parts import OTHER_BROKER, VICTIM_BROKER, Layout
from support.lifecycle.plays import FIRST_RECORDS, Play, Script
from support.lifecycle.reading import read_topics
from support.lifecycle.sides import Side, wait_until

MORE: Final = 20
# More than there were, so that a copy that goes on at its old position has something to skip.
NEW_RECORDS: Final = FIRST_RECORDS + 30
LARGE_BYTES: Final = 1_500_000
# Mirrors that run make topics again which they miss.
AT_TARGET_S: Final = 2.0
DAY_MS: Final = 86_400_000
_UNCLEAN: Final = (("unclean.leader.election.enable", "true"),)
_BOTH: Final = (VICTIM_BROKER, OTHER_BROKER)


# Source topics


def recreate_source(play: Play) -> None:
    play.source.delete(play.topics)
    for victim in play.victims:
        victim.mark(Fate.RETIRED, victim.sent.pop(0))
    play.step()
    play.create(play.source, play.topics, play.layout.replicas, {})
    play.send("b", NEW_RECORDS)


def recreate_both(play: Play) -> None:
    play.source.delete(play.topics)
    play.target.delete(play.topics, AT_TARGET_S)
    for victim in play.victims:
        victim.sent.pop(0)
    play.step()
    play.create(play.source, play.topics, play.layout.replicas, {})
    _create_again(play.target, play.topics)
    play.send("b", NEW_RECORDS)


def delete_source(play: Play) -> None:
    play.source.delete(play.topics)
    for victim in play.victims:
        victim.mark(Fate.RETIRED, victim.sent.pop(0))
    play.step()
    play.send("b", MORE, only_existing=True)


def grow_source(play: Play) -> None:
    play.source.grow(play.topics, 2)
    for victim in play.victims:
        victim.partitions = 2
    play.send("b", MORE)
    play.step()
    play.send("c", MORE)


def move_source_start(play: Play) -> None:
    play.source.delete_records({(topic, 0): FIRST_RECORDS - 25 for topic in play.topics})
    play.mark_absent(Fate.RETIRED, "a")
    play.step()
    play.send("b", MORE)


def pass_source_start(play: Play) -> None:
    play.pause()
    play.send("b", 2 * MORE)
    play.source.delete_records({(topic, 0): FIRST_RECORDS + 25 for topic in play.topics})
    play.mark_absent(Fate.RETIRED, "a")
    play.mark_absent(Fate.LOST, "b")
    play.step()
    play.resume()


def truncate_source(play: Play) -> None:
    play.source.cut(VICTIM_BROKER, play.topics)
    play.mark_absent(Fate.TRUNCATED, "a")
    play.send("b", NEW_RECORDS)


def leave_alone(side: Side, topics: Iterable[str]) -> None:
    """Let the victims' leader be the only replica in sync."""
    side.kill(OTHER_BROKER)
    names = list(topics)
    wait_until(
        lambda: all(side.in_sync(name) == {VICTIM_BROKER} for name in names), "leaders are alone"
    )


def elect_uncleanly(side: Side, topics: list[str]) -> None:
    """Let the replica lead that was away."""
    side.kill(VICTIM_BROKER)
    side.restart(OTHER_BROKER)
    wait_until(
        lambda: all(side.leader_of(name) == OTHER_BROKER for name in topics), "another leader"
    )


def send_tail(play: Play) -> None:
    leave_alone(play.source, play.topics)
    play.send("t", MORE)
    play.await_copied()


def send_long_tail(play: Play) -> None:
    leave_alone(play.source, play.topics)
    play.send("t", 15 * MORE)


def lose_tail(play: Play) -> None:
    elect_uncleanly(play.source, play.topics)
    play.mark_absent(Fate.TRUNCATED, "t")
    play.send("b", MORE)
    play.source.restart(VICTIM_BROKER)


def take_source_leader_away(play: Play) -> None:
    play.send("b", MORE)
    play.source.kill(VICTIM_BROKER)
    play.resume_mirrors()
    play.send_to(play.healthy, "h", MORE)
    if play.when is not When.BETWEEN:
        play.expect_healthy()
    play.source.restart(VICTIM_BROKER)
    play.send("c", MORE)


def raise_message_size(play: Play) -> None:
    play.source.set_configs(play.topics, {"max.message.bytes": "3000000"})
    large = {"value_bytes": LARGE_BYTES, "message_max_bytes": "3000000"}
    play.send_to(play.victims, "b", 1, **large)
    play.step()
    play.send("c", MORE)


def set_source(configs: dict[str, str], **how: Any) -> Callable[[Play], None]:
    def happen(play: Play) -> None:
        play.source.set_configs(play.topics, configs)
        play.send("b", MORE, **how)
        play.step()
        play.send("c", MORE, **how)

    return happen


def append_times(play: Play) -> None:
    """Producers of old records: only the time of the append keeps them."""
    play.source.set_configs(play.topics, {"message.timestamp.type": "LogAppendTime"})
    play.send("b", MORE, age_ms=3 * DAY_MS)
    play.step()
    play.send("c", MORE, age_ms=3 * DAY_MS)


def show_ids_of(name: str) -> Callable[[Play], None]:
    def happen(play: Play) -> None:
        side = play.source if name == "source" else play.target
        play.show_ids()
        for node in side.cluster.nodes():
            side.restart(node.id)
        play.send("b", MORE)
        play.step()
        play.send("c", MORE)

    return happen


# Target topics


def _create_again(side: Side, topics: list[str], **how: object) -> None:
    """A mirror may have been quicker."""
    missing = [topic for topic in topics if topic not in side.topics()]
    with suppress(KafkaException):
        if missing:
            side.create(missing, configs=dict(how))  # type: ignore[arg-type]


def recreate_target(play: Play) -> None:
    play.target.delete(play.topics, AT_TARGET_S)
    play.step()
    _create_again(play.target, play.topics)
    play.send("b", MORE)


def recreate_target_foreign(play: Play) -> None:
    play.target.delete(play.topics, AT_TARGET_S)
    _create_again(play.target, play.topics)
    foreign = [f"x-{number}" for number in range(MORE)]
    play.target.send([((topic, 0), x) for topic in play.topics for x in foreign])
    for victim in play.victims:
        victim.mark(Fate.FOREIGN, foreign)
    play.send("b", MORE)


def delete_target(play: Play) -> None:
    play.target.delete(play.topics, AT_TARGET_S)
    play.step()
    play.send("b", MORE)


def grow_target(play: Play) -> None:
    play.target.grow(play.topics, 2)
    play.step()
    play.send("b", MORE)


def move_target_start(play: Play) -> None:
    play.target.delete_records({(topic, 0): 25 for topic in play.topics})
    found = read_topics(play.target.bootstrap, play.topics)
    for victim in play.victims:
        there = {seen.identity for seen in found[victim.topic, 0]}
        victim.mark(Fate.TRIMMED, [x for x in victim.sent[0] if x not in there])
    play.step()
    play.send("b", MORE)


def truncate_target(play: Play) -> None:
    play.target.cut(VICTIM_BROKER, play.topics)
    play.send("b", MORE)


def send_target_tail(play: Play) -> None:
    leave_alone(play.target, play.topics)
    play.send("t", MORE)
    play.await_copied()


def lose_target_tail(play: Play) -> None:
    elect_uncleanly(play.target, play.topics)
    play.send("b", MORE)
    play.target.restart(VICTIM_BROKER)


def take_target_leader_away(play: Play) -> None:
    play.target.kill(VICTIM_BROKER)
    play.send("b", MORE)
    play.resume_mirrors()
    if play.when is not When.BETWEEN:
        play.expect_healthy()
    play.target.restart(VICTIM_BROKER)
    play.send("c", MORE)


def set_target(configs: dict[str, str]) -> Callable[[Play], None]:
    def happen(play: Play) -> None:
        play.target.set_configs(play.topics, configs)
        play.send("b", MORE)
        play.step()
        play.send("c", MORE)

    return happen


# Checkpoint topics


def _checkpoints(play: Play) -> list[str]:
    return [team.checkpoint_topic for team in play.teams]


def recreate_checkpoints(play: Play) -> None:
    play.target.delete(_checkpoints(play), AT_TARGET_S)
    play.step()
    _create_again(play.target, _checkpoints(play), **{"cleanup.policy": "compact"})
    play.send("b", MORE)


def delete_checkpoints(play: Play) -> None:
    play.target.delete(_checkpoints(play), AT_TARGET_S)
    play.step()
    play.send("b", MORE)


def grow_checkpoints(play: Play) -> None:
    play.target.grow(_checkpoints(play), 2)
    play.step()
    play.send("b", MORE)


def empty_checkpoints(play: Play) -> None:
    """A compacted topic lets nobody delete records, so it is not one for a moment."""
    topics = _checkpoints(play)
    play.target.set_configs(topics, {"cleanup.policy": "delete"})
    play.target.delete_records({(topic, 0): -1 for topic in topics})
    play.target.set_configs(topics, {"cleanup.policy": "compact"})
    play.step()
    play.send("b", MORE)


def truncate_checkpoints(play: Play) -> None:
    play.target.cut(OTHER_BROKER, _checkpoints(play))
    play.send("b", MORE)


def take_checkpoint_leader_away(play: Play) -> None:
    play.target.kill(OTHER_BROKER)
    if play.when is not When.STOPPED:
        play.send("b", MORE)
        play.step()
    play.target.restart(OTHER_BROKER)
    play.send("c", MORE)


def clean_checkpoints(play: Play) -> None:
    play.target.set_configs(_checkpoints(play), {"cleanup.policy": "delete"})
    play.step()
    play.send("b", MORE)


def rename_mirrors(play: Play) -> None:
    for team in play.teams:
        team.mirror.stop()
        team.mirror.name += "-renamed"
    play.send("b", MORE)
    play.start_mirrors()


# Whole clusters


def move_source(play: Play) -> None:
    play.send("b", MORE)
    moved = play.world.restart_elsewhere(play.lone_name, play.source.cluster)
    play.source = Side(moved)
    play.send("c", MORE)
    play.expect_not_green()
    play.restart_mirrors()


def replace_source(play: Play) -> None:
    folder = play.world.folder / play.lone_name
    play.source.cluster.stop()
    play.source = Side(play.world.make_lone(f"{play.lone_name}-new", ports_of=folder))
    for tracked in [*play.victims, *play.healthy]:
        tracked.mark(Fate.RETIRED, tracked.sent.pop(0))
    play.source.create([*play.topics, *(tracked.topic for tracked in play.healthy)])
    play.send("b", NEW_RECORDS)


def move_target(play: Play) -> None:
    play.target = Side(play.world.restart_elsewhere(play.lone_name, play.target.cluster))
    play.send("b", MORE)
    play.restart_mirrors()


def replace_target(play: Play) -> None:
    folder = play.world.folder / play.lone_name
    play.target.cluster.stop()
    play.target = Side(play.world.make_lone(f"{play.lone_name}-new", ports_of=folder))
    play.send("b", MORE)


_AT_TARGET: Final = Layout(target_replicas=(VICTIM_BROKER,))
# A start looks at a target for a minute that seems to have lost records.
_SLOW: Final = 80.0
_LONE_SOURCE: Final = Layout(lone="source", patience_s=60.0)
_LONE_TARGET: Final = Layout(lone="target", patience_s=60.0)

SCRIPTS: Final = {
    "source-recreated": Script(recreate_source),
    "both-recreated": Script(recreate_both),
    "source-deleted": Script(delete_source),
    "source-grown": Script(grow_source),
    "source-start-moved": Script(move_source_start),
    "source-start-passed": Script(pass_source_start),
    "source-truncated": Script(truncate_source),
    "source-unclean": Script(lose_tail, Layout(replicas=_BOTH, configs=_UNCLEAN), before=send_tail),
    "source-unclean-lagging": Script(
        lose_tail,
        Layout(replicas=_BOTH, configs=_UNCLEAN, options=("--max-bytes-per-s", "4000")),
        before=send_long_tail,
    ),
    "source-leader-away": Script(take_source_leader_away),
    "source-message-size": Script(raise_message_size),
    "source-compression": Script(set_source({"compression.type": "gzip"}, compression_type="zstd")),
    "source-retention": Script(set_source({"retention.ms": str(DAY_MS // 24)})),
    "source-timestamps": Script(append_times, Layout(configs=(("retention.ms", str(DAY_MS)),))),
    "source-ids-appear": Script(show_ids_of("source"), Layout(hides_ids="source")),
    "target-recreated": Script(recreate_target),
    "target-recreated-foreign": Script(recreate_target_foreign),
    "target-deleted": Script(delete_target),
    "target-grown": Script(grow_target),
    "target-start-moved": Script(move_target_start),
    "target-truncated": Script(truncate_target, replace(_AT_TARGET, patience_s=_SLOW)),
    "target-unclean": Script(
        lose_target_tail,
        Layout(target_replicas=_BOTH, target_configs=_UNCLEAN, patience_s=_SLOW),
        before=send_target_tail,
    ),
    "target-leader-away": Script(take_target_leader_away, _AT_TARGET),
    "target-message-size": Script(set_target({"max.message.bytes": "500"})),
    "target-compression": Script(set_target({"compression.type": "gzip"})),
    "target-retention": Script(set_target({"retention.ms": str(DAY_MS // 24)})),
    "target-timestamps": Script(
        set_target({"message.timestamp.type": "LogAppendTime"}), Layout(checks_times=False)
    ),
    "target-ids-appear": Script(show_ids_of("target"), Layout(hides_ids="target")),
    "checkpoint-recreated": Script(recreate_checkpoints),
    "checkpoint-deleted": Script(delete_checkpoints),
    "checkpoint-grown": Script(grow_checkpoints),
    "checkpoint-start-moved": Script(empty_checkpoints),
    "checkpoint-truncated": Script(
        truncate_checkpoints, Layout(checkpoint_replicas=(OTHER_BROKER,))
    ),
    "checkpoint-leader-away": Script(
        take_checkpoint_leader_away, Layout(checkpoint_replicas=(OTHER_BROKER,))
    ),
    "checkpoint-cleanup": Script(clean_checkpoints),
    "checkpoint-renamed": Script(rename_mirrors),
    "source-moved": Script(move_source, _LONE_SOURCE),
    "source-replaced": Script(replace_source, _LONE_SOURCE),
    "target-moved": Script(move_target, _LONE_TARGET),
    "target-replaced": Script(replace_target, _LONE_TARGET),
}
