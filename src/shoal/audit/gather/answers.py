"""Answers of tasks that stay beside the tasks, as files, until other tasks have added them up.

The driver receives the sum as one answer, however many tasks there were. The last task also
replaces what only a picture or a few numbers are made of by these: it is given the faults for that.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from shoal.audit.context import AuditContext
from shoal.audit.gather.combine import Combiner
from shoal.audit.parts import PartKind, TaskPart, from_table, make_part, to_record_batch
from shoal.audit.result.latencies import window_segments
from shoal.audit.result.merge import SUMMARY_KINDS
from shoal.audit.scratch import write_under_name
from shoal.audit.tasks import Combination
from shoal.audit.times.durations import measure_durations
from shoal.audit.times.latency import latency_buckets
from shoal.audit.times.runs import find_places
from shoal.audit.times.seconds import pack_counts, pack_latencies, percentiles_per_second
from shoal.model.errors import LedgerError
from shoal.storage.files import read_bytes
from shoal.storage.places import join_place

ANSWERS_PER_TASK: Final = 8
# What the driver decides by before it adds up answers.
_NEVER_KEPT: Final = (
    *(PartKind.UNDECIDED, PartKind.UNSETTLED),
    *(PartKind.SEEN_FILE, PartKind.SEEN_TRANSACTIONS),
)
_SUMMARIES: Final = (*SUMMARY_KINDS, PartKind.WALK, PartKind.JUMPS)

_Runner = Callable[[Sequence[Any], AuditContext], list[list[TaskPart]]]


def keep_answer(parts: Sequence[TaskPart], context: AuditContext) -> list[TaskPart]:
    """Write an answer into the scratch folder; return its name, and what the driver needs now.

    The name is the checksum of the content: a task that runs twice writes the same file.
    """
    kept = [part for part in parts if part.kind not in _NEVER_KEPT]
    rest = [part for part in parts if part.kind in _NEVER_KEPT]
    if not kept:
        return rest
    batch = to_record_batch(0, kept)
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, batch.schema, options=options) as stream:
        stream.write_batch(batch)
    content = sink.getvalue()
    name = hashlib.sha256(content).hexdigest()
    write_under_name(str(context.scratch), f"answer-{name}", content)
    return [make_part(PartKind.ANSWER_FILE, name, [content.size]), *rest]


def read_answer(name: str, context: AuditContext) -> list[TaskPart]:
    path = join_place(str(context.scratch), f"answer-{name}")
    try:
        content = read_bytes(path)
    except OSError as error:
        raise LedgerError(f"{path} cannot be read: {error}") from error
    if hashlib.sha256(content).hexdigest() != name:
        raise LedgerError(f"{path} is not what a task of this audit wrote; audit again")
    with pa.ipc.open_stream(content) as stream:
        return from_table(stream.read_all()).get(0, [])


def combine_answers(task: Combination, context: AuditContext) -> list[TaskPart]:
    """Add answers up; the last task returns the sum, the others keep it."""
    combiner = Combiner()
    for name in task.names:
        combiner.add([part for part in read_answer(name, context) if _is_wanted(part, task)])
    parts = combiner.parts()
    if not task.is_last:
        return keep_answer(parts, context)
    maxima = {part.label: part for part in parts if part.kind is PartKind.LATENCY_MAX}
    reduced = [
        new
        for part in parts
        if part.kind is not PartKind.LATENCY_MAX
        for new in _reduce(part, task, context)
    ]
    for part in parts:
        if part.kind is PartKind.LATENCY_SECOND:
            reduced += _reduce_latencies(part, maxima.pop(part.label))
    return [*reduced, *maxima.values()]


def _is_wanted(part: TaskPart, task: Combination) -> bool:
    if task.wanted == "all" or part.kind is PartKind.STREAMS:
        return True
    return (part.kind in _SUMMARIES) == (task.wanted == "summaries")


def _reduce(part: TaskPart, task: Combination, context: AuditContext) -> Iterable[TaskPart]:
    """Return what the result needs of a part, if that is less than the part."""
    if part.kind is PartKind.LATENCY_SECOND:
        yield make_part(PartKind.LATENCY_BUCKETS, part.label, latency_buckets(part.rows))
    elif part.kind is PartKind.SECOND and (packed := pack_counts(part.rows)):
        label = [*part.label, packed.start, packed.size]
        yield make_part(PartKind.PACKED_SECONDS, label, packed.values)
    elif part.kind is PartKind.SLOT_STATS:
        windows = window_segments(context, task.faults)
        rows = measure_durations(part.rows, context, windows)
        yield make_part(PartKind.FAULT_TIMES, part.label, rows)
    elif part.kind is PartKind.RANK_COUNTS:
        places = find_places(task.questions, part.values)
        yield make_part(PartKind.RANK_PLACES, None, np.concatenate(places))
    else:
        yield part


def _reduce_latencies(buckets: TaskPart, maxima: TaskPart) -> Iterable[TaskPart]:
    """Return the percentiles and the largest latency of each second."""
    packed = pack_latencies(buckets.rows, maxima.rows)
    if packed:
        label = [buckets.label, packed.start, packed.size]
        yield make_part(PartKind.PACKED_LATENCIES, label, packed.values)
    else:
        yield make_part(
            PartKind.SECOND_PERCENTILES, buckets.label, percentiles_per_second(buckets.rows)
        )
        yield maxima


def gather_answers(
    answers: Iterable[Sequence[TaskPart]],
    last: Combination,
    runner: _Runner,
    context: AuditContext,
) -> list[TaskPart]:
    """Return the sum of answers, in the order of their tasks; most were kept.

    `last` is the last task without the names of its answers.
    """
    parts = [part for own in answers for part in own]
    names = [part.label for part in parts if part.kind is PartKind.ANSWER_FILE]
    rest = [part for part in parts if part.kind is not PartKind.ANSWER_FILE]
    while len(names) > ANSWERS_PER_TASK:
        starts = range(0, len(names), ANSWERS_PER_TASK)
        tasks = [Combination(tuple(names[n : n + ANSWERS_PER_TASK]), last.wanted) for n in starts]
        names = [part.label for [part] in runner(tasks, context)]
    if not names:
        return rest
    [whole] = runner([replace(last, names=tuple(names), is_last=True)], context)
    return [*whole, *rest]
