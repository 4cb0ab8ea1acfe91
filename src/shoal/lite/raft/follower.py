"""What a follower does, for as long as it follows one leader in one epoch.

Rules of this file:
- One fetch at a time, and only when everything that we have is on the disk: a fetch says so.
- Only answers to the position where we are now count. Late and doubled ones are ignored; a lost
  one is asked for again.
- Where our log has parted from the leader's it is cut, never below the high watermark.
"""

from dataclasses import dataclass, field

from shoal.lite.raft.messages import (
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    RaftCode,
)
from shoal.lite.raft.model import EpochEnd, Snapshot, SnapshotId
from shoal.lite.raft.replica import Replica
from shoal.lite.raft.storage.codec import decode_snapshot
from shoal.model.errors import WireError


@dataclass(slots=True)
class Download:
    """A snapshot of which a part has arrived."""

    id: SnapshotId
    data: bytearray = field(default_factory=bytearray)


def fetch_request(replica: Replica) -> FetchRequest:
    """A fetch from where our log ends."""
    return FetchRequest(
        epoch=replica.epoch,
        replica_id=replica.key.id,
        replica_directory=replica.key.directory,
        offset=replica.log.end_offset,
        last_fetched_epoch=replica.log.last_epoch,
        high_watermark=replica.high_watermark,
    )


class Follower:
    """Following one leader."""

    def __init__(self, replica: Replica, leader_id: int) -> None:
        self._replica = replica
        self.leader_id = leader_id
        # Whether the leader has answered: before that, nobody else needs to respect it.
        self.has_fetched = False
        self.deadline_ms = replica.now_ms + replica.config.fetch_timeout_ms
        self._download: Download | None = None
        # When to ask (again).
        self._due_ms = replica.now_ms
        self.fetch_if_due()

    def fetch_if_due(self) -> None:
        replica = self._replica
        is_on_disk = replica.durable_end == replica.log.end_offset
        if not is_on_disk or replica.now_ms < self._due_ms:
            return
        self._due_ms = replica.now_ms + replica.config.request_timeout_ms
        download = self._download
        if download is None:
            replica.send(self.leader_id, fetch_request(replica))
        else:
            message = FetchSnapshotRequest(
                replica.epoch,
                replica.key.id,
                replica.key.directory,
                download.id,
                len(download.data),
            )
            replica.send(self.leader_id, message)

    def next_deadline_ms(self) -> int:
        return min(self.deadline_ms, self._due_ms)

    def _go_on(self) -> None:
        self._due_ms = self._replica.now_ms
        self.fetch_if_due()

    def back_off(self) -> None:
        """The leader refused: wait before the next try."""
        self._due_ms = self._replica.now_ms + self._replica.config.retry_backoff_ms

    def _heard_from_leader(self) -> None:
        self.has_fetched = True
        self.deadline_ms = self._replica.now_ms + self._replica.config.fetch_timeout_ms

    # Entries

    def on_fetch_response(self, response: FetchResponse) -> None:
        """The leader's answer; its epoch is ours."""
        replica = self._replica
        position = (replica.log.end_offset, replica.log.last_epoch)
        if self._download is not None:
            return
        if (response.offset, response.last_fetched_epoch) != position:
            return
        if response.error is not RaftCode.NONE:
            self.back_off()
            return
        self._heard_from_leader()
        if response.snapshot is not None:
            self._download = Download(response.snapshot)
        elif response.diverging is not None:
            self._truncate(response.diverging)
        else:
            if response.entries:
                replica.append(response.entries)
            end_offset = min(response.high_watermark, replica.log.end_offset)
            replica.advance_high_watermark(end_offset)
        self._go_on()

    def _truncate(self, leaders: EpochEnd) -> None:
        """Cut what the leader does not have, as far as an epoch and its end can tell."""
        ours = self._replica.log.end_of_epoch(leaders.epoch)
        if ours.epoch == leaders.epoch:
            self._replica.truncate_to(min(ours.end_offset, leaders.end_offset))
        else:
            self._replica.truncate_to(ours.end_offset)

    # Snapshots

    def on_snapshot_response(self, response: FetchSnapshotResponse) -> None:
        """The leader's answer; its epoch is ours."""
        download = self._download
        if download is None or response.snapshot != download.id:
            return
        if response.position != len(download.data):
            return
        if response.error is not RaftCode.NONE or not self._is_sound(response):
            # It may have a newer one by now: an ordinary fetch tells.
            self._download = None
            self.back_off()
            return
        self._heard_from_leader()
        download.data += response.data
        if len(download.data) == response.size:
            self._download = None
            if not self._load(Snapshot(download.id, bytes(download.data))):
                self.back_off()
                return
        self._go_on()

    def _is_sound(self, response: FetchSnapshotResponse) -> bool:
        end = response.position + len(response.data)
        limit = self._replica.config.snapshot_max_bytes
        return bool(response.data) and end <= response.size <= limit

    def _load(self, snapshot: Snapshot) -> bool:
        """Whether what has arrived is a snapshot; if not, it was damaged on its way."""
        try:
            content = decode_snapshot(snapshot.data)
        except WireError:
            return False
        self._replica.load_snapshot(snapshot, content)
        return True
