"""What brokers and controllers say to each other travels as it is, and rubbish is refused."""

from typing import Any
from uuid import UUID

import pytest

from shoal.lite.codes import Code
from shoal.lite.controller import requests
from shoal.lite.controller.protocol import decode_line, encode_line
from shoal.lite.controller.records import PartitionRecord
from shoal.lite.raft.messages import FetchRequest, FetchResponse, FetchSnapshotResponse, RaftCode
from shoal.lite.raft.model import Entry, EntryKind, EpochEnd, SnapshotId
from shoal.model.topics import TopicPartition
from shoal.wire.errors import Malformed

TOPIC_ID = UUID(int=9)
PARTITION = PartitionRecord(TOPIC_ID, 0, (1, 2, 3), (1, 2), 1, 4, 5)

VALUES = [
    requests.RegisterBroker(1, "x", "host", 9092, "boot", "folder", None, "rack"),
    requests.HeartbeatAnswer(is_caught_up=True, is_fenced=False, should_shut_down=False),
    requests.CreateTopic(requests.NewTopic("t", 1, 3, {0: [1, 2]}, {"a": None}), TOPIC_ID),
    requests.AlterPartitions(1, 2, [requests.InSyncChange(TOPIC_ID, 0, 1, 2, ((1, 7), (2, -1)))]),
    [requests.InSyncAnswer(TOPIC_ID, 0, Code.NONE, PARTITION)],
    requests.ElectLeaders(requests.Election.UNCLEAN, [TopicPartition("t", 1)]),
    requests.Reassign({TopicPartition("t", 1): [1, 2], TopicPartition("t", 2): None}),
    requests.ReportFailures(1, 2, [(TOPIC_ID, 3)]),
    FetchRequest(1, 2, TOPIC_ID, 3, 4, 5),
    FetchResponse(
        1,
        None,
        2,
        3,
        entries=(Entry(1, (b"\x00\xff",), EntryKind.VOTERS),),
        diverging=EpochEnd(1, 2),
        snapshot=SnapshotId(3, 4),
        error=RaftCode.NONE,
    ),
    FetchSnapshotResponse(1, 2, SnapshotId(3, 4), 5, 6, b"data"),
    None,
]


@pytest.mark.parametrize("value", VALUES)
def test_everything_comes_back_as_it_was(value: Any) -> None:
    line = encode_line(call=7, request=value)
    assert line.count(b"\n") == 1
    back = decode_line(line)
    assert back == {"call": 7, "request": value}
    assert type(back["request"]) is type(value)


@pytest.mark.parametrize(
    "line",
    [
        b"rubbish",
        b"[]",
        b'{"call": {"no": "mark"}}',
        b'{"call": {"$": "os", "": []}}',
        b'{"call": {"$": "Heartbeat", "": {"broker_id": 1}}}',
        b'{"call": {"$": "Heartbeat", "": {"shell": 1}}}',
        b'{"call": {"$": "uuid", "": "not one"}}',
        b'{"call": {"$": "bytes", "": "*"}}',
        b'{"call": {"$": "Code", "": 12345}}',
        b'{"call": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
def test_rubbish_is_refused(line: bytes) -> None:
    with pytest.raises(Malformed):
        decode_line(line)


def test_what_is_not_known_does_not_travel() -> None:
    with pytest.raises(TypeError, match="does not travel"):
        encode_line(call=object())
