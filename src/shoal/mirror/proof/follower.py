"""Proves continuously that a mirror's copy equals its source: `shoal mirror verify --follow`.

    round:  ends of all partitions ──► compare those with something new ──► proof.json

Rules:
- A round reads the target's ends before the source's, compares each partition up to them, and
  forgets what it has read: only positions and the last compared batches are kept. So memory does
  not depend on how far the target is behind.
- Each partition is compared on its own, at most `MOST_AT_ONCE` at a time and for a few seconds in a
  round; one that is not available is reported, and tried again later, less and less often.
- The comparison of a partition ends at the first difference, which stays in the file; the others
  continue. If its source or target topic is created again, it begins again.
- A partition begins again, from the start of both logs, when a log has become shorter than what was
  compared, and when after a change of leaders the last compared batch is another one. It continues
  behind records that retention has deleted.
- After a restart a partition continues where `proof-resume.json` says, under the same conditions;
  otherwise it begins again. Both are logged.
- An unexpected error puts off the partition in which it occurred, and is reported as its reason.
  The others are compared, and the exit code says that not everything is proven.
- A target that is behind its source is neither a difference nor unavailable.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from shoal.client.client import Client
from shoal.client.codes import Code
from shoal.client.errors import ClientError, KafkaError
from shoal.client.results import EARLIEST, LATEST
from shoal.client.transport.backoff import Backoff
from shoal.mirror.mm2.naming import Naming
from shoal.mirror.proof.comparison import Difference, PartitionReport, compare_logs
from shoal.mirror.proof.files import (
    FILE_NAME,
    RESUME_NAME,
    PartitionCheckpoint,
    PartitionProof,
    Proof,
    ProofCheckpoint,
    read_resume,
    write_file,
)
from shoal.mirror.proof.log import DamagedBatch, Log, Tail
from shoal.mirror.routes import Route
from shoal.mirror.verify import (
    MOST_AT_ONCE,
    NOT_COPIED_YET,
    UNEXPECTED,
    choose_topics,
    find_routes,
    read_offsets,
)
from shoal.mirror.watch.copies import find_copies, topic_id
from shoal.mirror.watch.generations import has_other_id
from shoal.model.errors import UsageError, WireError
from shoal.model.topics import TopicPartition
from shoal.runtime.tasks import record_failure

EVERY_S: Final = 1.0
ROUTES_EVERY_S: Final = 10.0
# How long a partition is compared in one round, and how long it may take to return its ends.
SLICE_S: Final = 3.0
ENDS_S: Final = 2.0
CHECKPOINTS_S: Final = 10.0

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Followed:
    """How far one partition is compared."""

    route: Route
    # Positions, and the last compared batch, of source and target; None before the start.
    offsets: tuple[int, int] | None = None
    tails: tuple[Tail | None, Tail | None] = (None, None)
    ids: tuple[str | None, str | None] = (None, None)
    epochs: tuple[int, int] = (-1, -1)  # leader epochs for which the tails were checked
    later: tuple[bool, bool] = (False, False)  # logs that still have to be aligned
    checksum: str = ""
    proven_offset: int = -1
    source_end: int = -1
    at_us: int = 0
    unavailable: str = ""
    difference: Difference | None = None
    not_before: float = 0.0
    backoff: Backoff = field(default_factory=lambda: Backoff(500, 10_000))

    def restart(self, why: str) -> None:
        """Compare from the start of both logs."""
        _log.warning("%s: the proof begins again: %s", self.route.source, why)
        self.offsets, self.tails, self.checksum = None, (None, None), ""
        self.proven_offset, self.difference = -1, None

    def put_off(self, reason: str, now: float) -> None:
        """It is not available: try again later."""
        if not self.unavailable:
            _log.warning("%s is not compared at the moment: %s", self.route.source, reason)
        self.unavailable = reason
        self.not_before = now + self.backoff.next_wait_s()

    def to_proof(self) -> PartitionProof:
        return PartitionProof(
            source=str(self.route.source),
            target=str(self.route.target),
            proven_offset=self.proven_offset,
            source_end=self.source_end,
            at_us=self.at_us,
            checksum=self.checksum,
            unavailable=self.unavailable,
            difference=self.difference,
            source_topic_id=self.ids[0],
            target_topic_id=self.ids[1],
        )

    def to_resume(self) -> PartitionCheckpoint | None:
        if self.offsets is None or any(self.later) or self.difference is not None:
            return None
        return PartitionCheckpoint(
            str(self.route.source),
            str(self.route.target),
            *self.offsets,
            *self.ids,
            *self.tails,
            self.checksum,
        )


class ProofFollower:
    """Compares the partitions of topics again and again, and writes how far they are equal."""

    def __init__(
        self,
        source: Client,
        target: Client,
        topics: Iterable[str],
        *,
        mirror: str,
        folder: Path,
        naming: Naming | None = None,
        every_s: float = EVERY_S,
    ) -> None:
        self._clients = source, target
        self._topics = list(topics)
        self._mirror = mirror
        self._folder = folder
        self._naming = naming or Naming()
        self._every_s = every_s
        self._followed: dict[Route, Followed] = {}
        self._absent: dict[TopicPartition, str] = {}
        self._room = asyncio.Semaphore(MOST_AT_ONCE)
        self._routes_at = -ROUTES_EVERY_S

    @property
    def partitions(self) -> list[PartitionProof]:
        """How far each partition is proven."""
        proofs = [each.to_proof() for each in self._followed.values()]
        known = {proof.source for proof in proofs}
        proofs += [
            PartitionProof(str(tp), "", -1, -1, 0, "", unavailable=reason)
            for tp, reason in self._absent.items()
            if str(tp) not in known
        ]
        return sorted(proofs, key=lambda proof: _sort_key(proof.source))

    async def run(
        self,
        stop: asyncio.Event,
        on_round: Callable[[list[PartitionProof]], None] = lambda _: None,
    ) -> None:
        """Compare until `stop` is set; `on_round` is called after each round."""
        await self._find_routes()
        if not self._followed:
            reason = next(iter(self._absent.values()), "the topics have no partitions")
            raise UsageError(reason, remedy="check --topics")
        self._resume()
        while not stop.is_set():
            try:
                await self.compare_once()
            except ClientError as error:
                _log.warning("nothing is compared at the moment: %s", error)
            except Exception as error:  # noqa: BLE001 - a proof that runs for weeks must not end
                self._put_off_all(error)
            self._write()
            on_round(self.partitions)
            try:
                await asyncio.wait_for(stop.wait(), self._every_s)
            except TimeoutError:
                continue

    async def compare_once(self) -> None:
        """One round."""
        now = asyncio.get_running_loop().time()
        if now - self._routes_at >= ROUTES_EVERY_S:
            await self._find_routes()
        due = [each for each in self._followed.values() if each.not_before <= now]
        due = [each for each in due if not self._is_same(each) or each.difference is None]
        await self._begin_each([each for each in due if each.offsets is None])
        ends = await self._read_ends([each for each in due if each.offsets is not None])
        await asyncio.gather(*(self._compare(each, *ends[each]) for each in ends))

    # Topics and partitions.

    async def _find_routes(self) -> None:
        names = await choose_topics(self._clients[0], self._topics, self._naming)
        routes, absent = await find_routes(*self._clients, names, self._naming)
        self._absent = {report.partition: report.unavailable for report in absent}
        for route in routes:
            self._followed.setdefault(route, Followed(route))
        now = self._routes_at = asyncio.get_running_loop().time()
        for route, each in self._followed.items():
            gone = self._absent.get(TopicPartition(route.source.topic, 0))
            if route not in routes:
                each.put_off(gone or "its topic was deleted", now)

    def _ids(self, route: Route) -> tuple[str | None, str | None]:
        source, target = self._clients
        return topic_id(source, route.source.topic), topic_id(target, route.target.topic)

    def _is_same(self, each: Followed) -> bool:
        """Begin again where a topic was created again, which metadata may show at any time."""
        ids = zip(each.ids, self._ids(each.route), strict=True)
        if each.offsets is None or not any(has_other_id(*both) for both in ids):
            return True
        each.restart("a topic was deleted and created again")
        return False

    async def _begin_each(self, followed: list[Followed]) -> None:
        """Begin all; if that fails unexpectedly, each alone, so that one stops no other."""
        try:
            await self._begin(followed)
        except ClientError:
            raise
        except Exception as error:  # noqa: BLE001 - the others are compared
            if len(followed) == 1:
                self._put_off_unexpected(followed[0], error)
                return
            for each in followed:
                await self._begin_each([each])

    def _put_off_unexpected(self, each: Followed, error: Exception) -> None:
        """An error for which there is no rule: report it as what it is, and try again later."""
        record_failure("mirror proof", error, f"{each.route.source} is compared again later")
        each.put_off(UNEXPECTED.format(error), asyncio.get_running_loop().time())

    def _put_off_all(self, error: Exception) -> None:
        """A round failed as a whole: nothing of it counts."""
        for each in self._followed.values():
            if each.difference is None:
                self._put_off_unexpected(each, error)

    async def _begin(self, followed: list[Followed]) -> None:
        """Find where the comparison of partitions starts."""
        if not followed:
            return
        now = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(CHECKPOINTS_S):
                copies = await find_copies(*self._clients, [each.route for each in followed])
        except TimeoutError:
            for each in followed:
                each.put_off("the checkpoints at the target cannot be read", now)
            return
        firsts = await self._read_offsets(followed, EARLIEST, is_source_first=True)
        for each, (source_first, target_first) in firsts.items():
            copy = copies.get(each.route)
            if copy is not None and copy.is_of_former_source:
                each.put_off(NOT_COPIED_YET, now)
                continue
            base = 0 if copy is None else copy.target_start
            each.offsets = source_first, max(target_first, base)
            each.later = source_first > 0, target_first > base
            each.tails, each.checksum, each.ids = (None, None), "", self._ids(each.route)
            each.epochs = self._epochs(each.route)
            _log.info("%s: the proof begins at source offset %d", each.route.source, source_first)

    def _resume(self) -> None:
        """Continue where an earlier process ended; see `_is_unchanged` for the conditions."""
        known = read_resume(self._folder)
        clusters = tuple(client.cluster.cluster_id for client in self._clients)
        if known is None or (known.source_cluster, known.target_cluster) != clusters:
            return
        points = {(point.source, point.target): point for point in known.partitions}
        for route, each in self._followed.items():
            point = points.get((str(route.source), str(route.target)))
            if point is None or (point.source_topic_id, point.target_topic_id) != self._ids(route):
                continue
            each.offsets = point.source_offset, point.target_offset
            each.tails = point.source_tail, point.target_tail
            each.ids, each.checksum = self._ids(route), point.checksum
            # Nothing that is not checked again counts as proven.
            _log.info("%s: the proof continues at %d", route.source, point.source_offset)

    # Reading.

    async def _read_offsets(
        self, followed: list[Followed], which: int, *, is_source_first: bool
    ) -> dict[Followed, tuple[int, int]]:
        """Read an offset of both logs; partitions that do not answer are put off."""
        failed: dict[TopicPartition, str] = {}
        found: list[dict[TopicPartition, int]] = [{}, {}]
        sides = (0, 1) if is_source_first else (1, 0)
        for side in sides:
            asked = [each.route[side] for each in followed]
            found[side] = await read_offsets(
                self._clients[side], asked, which, failed, timeout_s=ENDS_S
            )
        both: dict[Followed, tuple[int, int]] = {}
        for each in followed:
            ours, theirs = found[0].get(each.route[0]), found[1].get(each.route[1])
            if ours is None or theirs is None:
                silent = each.route[0] if ours is None else each.route[1]
                each.put_off(failed[silent], asyncio.get_running_loop().time())
            else:
                both[each] = ours, theirs
        return both

    async def _read_ends(self, followed: list[Followed]) -> dict[Followed, tuple[int, int]]:
        return await self._read_offsets(followed, LATEST, is_source_first=False)

    def _epochs(self, route: Route) -> tuple[int, int]:
        known = [
            client.cluster.partition(tp) for client, tp in zip(self._clients, route, strict=True)
        ]
        source, target = (-1 if each is None else each.leader_epoch for each in known)
        return source, target

    async def _compare(self, each: Followed, source_end: int, target_end: int) -> None:
        async with self._room:
            try:
                await self._compare_to(each, (source_end, target_end))
            except (ClientError, WireError) as error:
                is_cut = isinstance(error, KafkaError) and error.code == Code.OFFSET_OUT_OF_RANGE
                if is_cut:
                    await self._skip_deleted(each)
                each.put_off(str(error), asyncio.get_running_loop().time())
            except Exception as error:  # noqa: BLE001 - the others are compared
                self._put_off_unexpected(each, error)

    async def _compare_to(self, each: Followed, ends: tuple[int, int]) -> None:
        if each.offsets is None or not self._is_same(each):
            return
        for side, name in enumerate(("source", "target")):
            if ends[side] < each.offsets[side]:
                each.restart(
                    f"the {name} ends at {ends[side]}, below {each.offsets[side]}: it was "
                    "truncated, or deleted and created again"
                )
                self._routes_at = -ROUTES_EVERY_S  # look at the topic ids
                return
        if not await self._is_unchanged(each):
            return
        if each.offsets != ends and not await self._advance(each, ends):
            return
        each.source_end, each.at_us = ends[0], time.time_ns() // 1000
        each.unavailable = ""
        each.backoff.reset()
        if not any(each.later):
            each.proven_offset = each.offsets[0]

    async def _is_unchanged(self, each: Followed) -> bool:
        """After a change of leaders or a restart: are the last compared batches still there?"""
        epochs = self._epochs(each.route)
        if each.epochs == epochs:
            return True
        for side, name in enumerate(("source", "target")):
            tail = each.tails[side]
            if tail is None or each.epochs[side] == epochs[side]:
                continue
            found = await _find_crc(self._clients[side], each.route[side], tail.last_offset)
            if found is not None and found != tail.crc:
                each.restart(f"the {name} has another batch at offset {tail.last_offset}")
                return False
        each.epochs = epochs
        return True

    async def _skip_deleted(self, each: Followed) -> None:
        """Continue behind what retention has deleted."""
        firsts = await self._read_offsets([each], EARLIEST, is_source_first=True)
        first = firsts.get(each)
        if first is None or each.offsets is None:
            return
        later = first[0] > each.offsets[0], first[1] > each.offsets[1]
        if any(later):
            text = "%s: retention deleted records that were not compared; continuing at %d"
            _log.warning(text, each.route.source, first[0])
            each.offsets = max(first[0], each.offsets[0]), max(first[1], each.offsets[1])
            each.later = later[0] or each.later[0], later[1] or each.later[1]

    async def _advance(self, each: Followed, ends: tuple[int, int]) -> bool:
        """Compare what is new, and remember how far both logs are equal; False if that is void."""
        assert each.offsets is not None  # noqa: S101 - for the type checker
        loop = asyncio.get_running_loop()
        until = loop.time() + SLICE_S
        logs = [
            Log(client, tp, first, end)
            for client, tp, first, end in zip(
                self._clients, each.route, each.offsets, ends, strict=True
            )
        ]
        for log, tail in zip(logs, each.tails, strict=True):
            log.tail = tail
        source, target = logs
        source.checksum = each.checksum
        report = PartitionReport(each.route.source)
        is_aligned = await compare_logs(
            report, source, target, later=each.later, may_continue=lambda: loop.time() < until
        )
        if not self._is_same(each):
            return False
        is_late = not is_aligned and report.difference is not None and each.later[0]
        if not is_late:  # otherwise the target may still get the source's first record
            each.difference = report.difference
        each.offsets = source.next_offset, target.next_offset
        each.tails, each.checksum = (source.tail, target.tail), source.checksum
        if is_aligned:
            each.later = False, False
        elif is_late:
            each.later = True, False  # what the target has now is older than the source's first
        if each.difference is not None:
            where = each.difference
            _log.error(
                "%s DIFFERS at source offset %d, target offset %d: %s",
                each.route.source,
                where.source_offset,
                where.target_offset,
                where.what,
            )
        return True

    # Files.

    def _write(self) -> None:
        source, target = self._clients
        proof = Proof(
            mirror=self._mirror,
            source=",".join(source.config.bootstrap_servers),
            target=",".join(target.config.bootstrap_servers),
            pid=os.getpid(),
            at_us=time.time_ns() // 1000,
            partitions=self.partitions,
        )
        points = [each.to_resume() for each in self._followed.values()]
        resume = ProofCheckpoint(
            source.cluster.cluster_id,
            target.cluster.cluster_id,
            [point for point in points if point is not None],
        )
        write_file(self._folder / RESUME_NAME, resume)
        write_file(self._folder / FILE_NAME, proof)


async def _find_crc(client: Client, tp: TopicPartition, last_offset: int) -> int | None:
    """The CRC of the batch that ends with this offset; None if retention has deleted it."""
    log = Log(client, tp, last_offset, last_offset + 1)
    try:
        if await log.peek_record() is not None:
            log.drop_record()
    except DamagedBatch:
        return None  # the comparison finds it
    except KafkaError as error:
        if error.code != Code.OFFSET_OUT_OF_RANGE:
            raise
        return None
    return None if log.tail is None else log.tail.crc


def _sort_key(source: str) -> tuple[str, int]:
    topic, _, number = source.rpartition("-")
    return topic, int(number)
