"""Messages and actions of a quorum in words, for transcripts."""

from shoal.lite.raft.actions import (
    Action,
    AppendEntries,
    BecameLeader,
    Committed,
    LoadSnapshot,
    PersistVote,
    ResignedLeader,
    SaveSnapshot,
    SendToPeer,
    StorageAction,
    TruncateEntries,
    VoterRejected,
)
from shoal.lite.raft.messages import (
    BeginQuorumEpoch,
    EndQuorumEpoch,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    RaftCode,
    RaftFetchRequest,
    RaftFetchResponse,
    RaftMessage,
    VoteRequest,
    VoteResponse,
)
from shoal.lite.raft.model import EntryKind, RaftEntry


def entry_text(entry: RaftEntry) -> str:
    if entry.kind is not EntryKind.DATA:
        return f"{entry.kind.value}@{entry.epoch}"
    return f"{'+'.join(record.decode() for record in entry.records)}@{entry.epoch}"


def _entries(entries: tuple[RaftEntry, ...]) -> str:
    return " ".join(map(entry_text, entries)) or "nothing"


def describe_action(action: Action) -> str:
    match action:
        case Committed(base_offset, entries, high_watermark):
            return f"committed {base_offset} to {high_watermark}: {_entries(entries)}"
        case BecameLeader(epoch):
            return f"leads epoch {epoch}"
        case ResignedLeader(epoch):
            return f"leads epoch {epoch} no more"
        case VoterRejected(by, error):
            return f"refused by {by}: {error.name}"
        case SendToPeer(to, message):
            return f"send to {to}: {describe_message(message)}"
        case _:
            return _describe_write(action)


def _describe_write(action: StorageAction) -> str:
    match action:
        case PersistVote(state):
            voted = None if state.voted_for is None else state.voted_for.id
            return f"remember epoch={state.epoch} vote={voted} leader={state.leader_id}"
        case AppendEntries(base_offset, entries):
            return f"append at {base_offset}: {_entries(entries)}"
        case TruncateEntries(offset):
            return f"truncate to {offset}"
        case SaveSnapshot(snapshot):
            return f"save snapshot {tuple(snapshot.id)}"
        case LoadSnapshot(snapshot):
            return f"load snapshot {tuple(snapshot.id)}"


def describe_message(message: RaftMessage) -> str:
    return f"{_body(message)}{_error(getattr(message, 'error', RaftCode.NONE))}"


def _error(error: RaftCode) -> str:
    return "" if error is RaftCode.NONE else f" {error.name}"


def _body(message: RaftMessage) -> str:
    head = f"{type(message).__name__.removeprefix('Raft')} epoch={message.epoch}"
    match message:
        case VoteRequest():
            kind = "pre-vote" if message.pre_vote else "vote"
            return f"{head} {kind} last={message.last_epoch}/{message.last_offset}"
        case VoteResponse():
            kind = "pre-vote" if message.pre_vote else "vote"
            verdict = "granted" if message.granted else "denied"
            return f"{head} {kind} {verdict} leader={message.leader_id}"
        case BeginQuorumEpoch():
            return head
        case EndQuorumEpoch():
            return f"{head} preferred={','.join(map(str, message.preferred))}"
        case RaftFetchRequest():
            return f"{head} from={message.last_fetched_epoch}/{message.offset}"
        case RaftFetchResponse():
            return f"{head} leader={message.leader_id} {_build_fetch_partition(message)}"
        case FetchSnapshotRequest():
            return f"{head} {tuple(message.snapshot)} at {message.position}"
        case FetchSnapshotResponse():
            sent = f"{len(message.data)} of {message.size} bytes"
            return f"{head} {tuple(message.snapshot)} at {message.position}: {sent}"
        case _:
            return f"{head} leader={message.leader_id}"


def _build_fetch_partition(response: RaftFetchResponse) -> str:
    if response.error is not RaftCode.NONE:
        return "nothing"
    if response.diverging is not None:
        return f"diverging={response.diverging.epoch}/{response.diverging.end_offset}"
    if response.snapshot is not None:
        return f"snapshot={tuple(response.snapshot)}"
    return f"{_entries(response.entries)} committed={response.high_watermark}"
