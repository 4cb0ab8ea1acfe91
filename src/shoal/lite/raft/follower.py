"""The follower role: following one leader in one epoch.

Rules of this file:
- One fetch at a time, and only when the whole log is on the disk: a fetch acknowledges it.
- Only responses to the current position count. Late and duplicate ones are ignored; after a
  lost one the fetch is sent again.
- A log that diverged from the leader's is truncated, never below the high watermark.
"""

from dataclasses import dataclass, field

from shoal.lite.raft.messages import (
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    RaftCode,
    RaftFetchRequest,
    RaftFetchResponse,
)
from shoal.lite.raft.model import RaftEpochEnd, RaftSnapshot, RaftSnapshotId
from shoal.lite.raft.replica import RaftReplica
from shoal.lite.raft.storage.codec import decode_snapshot
from shoal.model.errors import WireError


@dataclass(slots=True)
class SnapshotDownload:
    """A snapshot that has arrived in part."""

    id: RaftSnapshotId
    data: bytearray = field(default_factory=bytearray)


def fetch_request(replica: RaftReplica) -> RaftFetchRequest:
    """A fetch from the end of this member's log."""
    return RaftFetchRequest(
        epoch=replica.epoch,
        replica_id=replica.key.id,
        replica_directory=replica.key.directory,
        offset=replica.log.end_offset,
        last_fetched_epoch=replica.log.last_epoch,
        high_watermark=replica.high_watermark,
    )


class RaftFollower:
    """A member that follows one leader."""

    def __init__(self, replica: RaftReplica, leader_id: int) -> None:
        self._replica = replica
        self.leader_id = leader_id
        # Whether the leader has answered. Until then this member may grant pre-votes to others.
        self.has_fetched = False
        self.deadline_ms = replica.now_ms + replica.config.fetch_timeout_ms
        self._download: SnapshotDownload | None = None
        # When to send the next fetch.
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

    def _fetch_now(self) -> None:
        self._due_ms = self._replica.now_ms
        self.fetch_if_due()

    def back_off(self) -> None:
        """The leader returned an error: wait before the next try."""
        self._due_ms = self._replica.now_ms + self._replica.config.retry_backoff_ms

    def _on_leader_answered(self) -> None:
        self.has_fetched = True
        self.deadline_ms = self._replica.now_ms + self._replica.config.fetch_timeout_ms

    # Entries

    def on_fetch_response(self, response: RaftFetchResponse) -> None:
        """A response of the leader, of the current epoch."""
        replica = self._replica
        position = (replica.log.end_offset, replica.log.last_epoch)
        if self._download is not None:
            return
        if (response.offset, response.last_fetched_epoch) != position:
            return
        if response.error is not RaftCode.NONE:
            self.back_off()
            return
        self._on_leader_answered()
        if response.snapshot is not None:
            self._download = SnapshotDownload(response.snapshot)
        elif response.diverging is not None:
            self._truncate(response.diverging)
        else:
            if response.entries:
                replica.append(response.entries)
            end_offset = min(response.high_watermark, replica.log.end_offset)
            replica.advance_high_watermark(end_offset)
        self._fetch_now()

    def _truncate(self, leaders: RaftEpochEnd) -> None:
        """Truncate what the leader does not have, as far as one epoch and its end show it."""
        ours = self._replica.log.end_of_epoch(leaders.epoch)
        if ours.epoch == leaders.epoch:
            self._replica.truncate_to(min(ours.end_offset, leaders.end_offset))
        else:
            self._replica.truncate_to(ours.end_offset)

    # Snapshots

    def on_snapshot_response(self, response: FetchSnapshotResponse) -> None:
        """A response of the leader, of the current epoch."""
        download = self._download
        if download is None or response.snapshot != download.id:
            return
        if response.position != len(download.data):
            return
        if response.error is not RaftCode.NONE or not self._is_valid_chunk(response):
            # The leader may have a newer snapshot by now: an ordinary fetch finds out.
            self._download = None
            self.back_off()
            return
        self._on_leader_answered()
        download.data += response.data
        if len(download.data) == response.size:
            self._download = None
            if not self._load(RaftSnapshot(download.id, bytes(download.data))):
                self.back_off()
                return
        self._fetch_now()

    def _is_valid_chunk(self, response: FetchSnapshotResponse) -> bool:
        end = response.position + len(response.data)
        limit = self._replica.config.snapshot_max_bytes
        return bool(response.data) and end <= response.size <= limit

    def _load(self, snapshot: RaftSnapshot) -> bool:
        """Load a complete snapshot; False if it was damaged in transit."""
        try:
            content = decode_snapshot(snapshot.data)
        except WireError:
            return False
        self._replica.load_snapshot(snapshot, content)
        return True
