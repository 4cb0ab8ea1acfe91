"""Compares all partitions of topics at a source and a target, once; writes nothing.

Rules:
- The target's end is read before the source's, so everything that a correct mirror has written by
  then is in the source. `shoal.mirror.proof.comparison` says what is equal.
- Topics are names and expressions, as `shoal mirror run` has them. An expression that matches
  nothing is an error, and so is a list by which nothing is compared: otherwise what was mistyped
  would count as equal.
- Partitions are compared in parallel, at most `MOST_AT_ONCE`. One that is not available, or whose
  topic is deleted meanwhile, is reported, and the others are compared.
- Where a shoal mirror copied a recreated topic, its checkpoints say where the current generation
  begins at the target. Target records before that belong to an earlier generation; they are
  counted and not compared.
- Where a checkpoint says that the copy began behind the source's log start (`--start`), the source
  is compared from there. The offsets before are reported, and keep the result from being proven:
  a mirror's own checkpoints cannot hide records that it did not copy.
- Records that only the target has deleted are reported, and keep the result from being proven too.
- Brokers compact at different times. So a difference between topics of which one is compacted
  proves nothing: it is reported as not comparable.
"""

import asyncio
from collections.abc import Iterable
from typing import Final

from shoal.client.client import Client
from shoal.client.cluster.metadata import ClusterMetadata
from shoal.client.codes import Code
from shoal.client.errors import ClientError, error_for
from shoal.client.results import EARLIEST, LATEST
from shoal.mirror.mm2.naming import Naming, is_internal
from shoal.mirror.mm2.patterns import TOPICS_EXCLUDE, Patterns
from shoal.mirror.proof.comparison import Difference, PartitionReport, compare_logs
from shoal.mirror.proof.log import ANSWER_S, Log
from shoal.mirror.routes import Route
from shoal.mirror.watch.copies import Copy, find_copies
from shoal.model.errors import UsageError, WireError
from shoal.model.topics import TopicPartition
from shoal.runtime.tasks import record_failure

MOST_AT_ONCE: Final = 8
UNEXPECTED: Final = "the comparison failed with an internal error ({!r}), see the log"

NOT_COPIED_YET: Final = (
    "the source topic was deleted and created again since it was mirrored, and the mirror has "
    "not started to copy the new topic: nothing can be compared"
)


async def verify(
    source: Client, target: Client, topics: Iterable[str], naming: Naming | None = None
) -> list[PartitionReport]:
    """Compare all partitions of the source topics that these names and expressions select."""
    naming = naming or Naming()
    names = await choose_topics(source, topics, naming)
    routes, reports = await find_routes(source, target, names, naming)
    if not routes:
        raise UsageError(reports[0].unavailable, remedy="check --topics")
    failed: dict[TopicPartition, str] = {}
    target_ends = await read_offsets(target, [route.target for route in routes], LATEST, failed)
    missing = {route.source: failed[route.target] for route in routes if route.target in failed}
    source_ends = await read_offsets(source, [route.source for route in routes], LATEST, missing)
    target_firsts = await read_offsets(target, list(target_ends), EARLIEST, failed)
    missing |= {route.source: failed[route.target] for route in routes if route.target in failed}
    source_firsts = await read_offsets(source, list(source_ends), EARLIEST, missing)
    copies = await find_copies(source, target, routes)
    room = asyncio.Semaphore(MOST_AT_ONCE)

    async def compare_one(route: Route) -> PartitionReport:
        ours, theirs = route
        if ours in missing:
            return PartitionReport(ours, unavailable=missing[ours])
        logs = (
            Log(source, ours, source_firsts[ours], source_ends[ours]),
            Log(target, theirs, target_firsts[theirs], target_ends[theirs]),
        )
        async with room:
            return await _compare(ours, logs, copies.get(route))

    return [*reports, *await asyncio.gather(*map(compare_one, routes))]


async def _compare(
    partition: TopicPartition, logs: tuple[Log, Log], copy: Copy | None
) -> PartitionReport:
    source, target = logs
    report, first = PartitionReport(partition), target.next_offset
    base = 0 if copy is None else copy.target_start
    begun = 0 if copy is None else max(0, copy.source_start)
    target.skip_to(base)
    report.earlier_generations = target.next_offset - first
    if copy is not None and copy.is_of_former_source:
        report.difference = Difference(-1, first, NOT_COPIED_YET)
        return report
    # The target starts later if it has deleted records of this generation.
    later = source.next_offset > begun, first > base
    report.not_copied = max(0, min(begun, source.end) - source.next_offset)
    source.skip_to(begun)
    try:
        await compare_logs(report, source, target, later=later)
        if report.difference is not None:
            await _excuse_compaction(report, logs)
    except (ClientError, WireError) as error:
        report.unavailable = str(error)
    except Exception as error:  # noqa: BLE001 - the others are compared
        record_failure("mirror proof", error, f"{partition} is not compared to the end")
        report.unavailable = UNEXPECTED.format(error)
    return report


async def _excuse_compaction(report: PartitionReport, logs: tuple[Log, Log]) -> None:
    """Turn a difference between topics of which one is compacted into a reason."""
    compacted = [
        name
        for name, log in zip(("source", "target"), logs, strict=True)
        if await log.is_compacted()
    ]
    where = report.difference
    if where is not None and compacted:
        report.difference = None
        report.unavailable = (
            f"{' and '.join(compacted)} compact this topic, each at its own time, so the logs "
            "cannot be compared record by record; they first differ at source "
            f"{where.source_offset}, target {where.target_offset}: {where.what}"
        )


async def choose_topics(source: Client, topics: Iterable[str], naming: Naming) -> list[str]:
    """The source topics that are named, and those that expressions match."""
    patterns = Patterns(topics)
    if not patterns.entries:
        raise UsageError("no topics to compare are given", remedy="give --topics a,b")
    names, expressions = list(patterns.plain), patterns.expressions
    if expressions:
        cluster = await source.with_retries(source.metadata)
        there = sorted(name for name in cluster.topics if _is_mirrored(name, naming))
        for expression in expressions:
            found = [name for name in there if Patterns([expression]).match(name)]
            if not found:
                raise UsageError(
                    f"no topic of the source cluster matches {expression}", remedy="check --topics"
                )
            names += found
    return list(dict.fromkeys(names))


def _is_mirrored(name: str, naming: Naming) -> bool:
    """Whether an expression may stand for this topic, as in a mirror."""
    is_left_out = is_internal(name) or naming.is_cycle(name)
    return not (is_left_out or Patterns(TOPICS_EXCLUDE).match(name))


async def find_routes(
    source: Client, target: Client, topics: Iterable[str], naming: Naming
) -> tuple[list[Route], list[PartitionReport]]:
    """The partitions that both clusters have, and reports of those that one of them lacks."""
    routes: list[Route] = []
    absent: dict[TopicPartition, str] = {}
    names = {ours: naming.target_of(ours) for ours in topics}
    here = await source.metadata(names, refresh=True)
    there = await target.metadata(names.values(), refresh=True)
    for ours, theirs in names.items():
        if reason := _find_missing(here, ours, "source"):
            absent[TopicPartition(ours, 0)] = reason
            continue
        target_reason = _find_missing(there, theirs, "target")
        copied = set(there.partitions_of(theirs))
        for tp in here.partitions_of(ours):
            route = Route(tp, TopicPartition(theirs, tp.partition))
            if route.target in copied:
                routes.append(route)
            else:
                no_partition = f"the target cluster has no partition {route.target}"
                absent[tp] = target_reason or no_partition
    return routes, [PartitionReport(tp, unavailable=reason) for tp, reason in absent.items()]


def _find_missing(cluster: ClusterMetadata, name: str, side: str) -> str:
    """Why a topic has no partitions that can be compared; empty if it has some."""
    topic = cluster.topics[name]
    if topic.error == Code.UNKNOWN_TOPIC_OR_PARTITION:
        return f"the {side} cluster has no topic {name}"
    if topic.error != Code.NONE:
        error = error_for(topic.error, topic=name)
        return f"cannot read the metadata of the {side} topic: {error.message}"
    return "" if topic.partitions else f"the {side} topic {name} has no partitions"


async def read_offsets(
    client: Client,
    partitions: list[TopicPartition],
    which: int,
    failed: dict[TopicPartition, str],
    *,
    timeout_s: float = ANSWER_S,
) -> dict[TopicPartition, int]:
    """Read one offset per partition; partitions that do not answer are added to `failed`."""
    asked = dict.fromkeys(partitions, which)
    listed = await client.list_offsets_or_errors(
        asked, isolation="read_committed", timeout_s=timeout_s
    )
    failed.update((tp, str(error)) for tp, error in listed.errors.items())
    return {tp: one.offset for tp, one in listed.offsets.items()}
