"""Fixed bytes of every format are read, and written again as they were.

`bytes.json` has them. What is called "…, commit 4ac8f05" is as that commit writes it. A new version
of a format adds bytes of its own; those that are there stay as long as their version is read.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from shoal.lite.base.spec import BrokerSpec, ControllerSpec, SupervisorSpec
from shoal.lite.metadata.data import records, values
from shoal.lite.metadata.server.founding import FOUNDING_NAME, FoundingState
from shoal.lite.nodes.cluster_folder import ClusterFolder, ControlAddress
from shoal.lite.raft.storage.small_files import (
    MEMBER_NAME,
    QUORUM_STATE_NAME,
    read_member,
    read_quorum_state,
    write_member,
    write_quorum_state,
)
from shoal.lite.storage.files import DamagedFile
from shoal.lite.storage.recovery.last_shutdown import LastShutdown
from shoal.lite.storage.recovery.shutdown_marker import MARKER_NAME, ShutdownMarker
from shoal.mirror.config import MirrorConfig
from shoal.mirror.offsets import checkpoints
from shoal.mirror.offsets.re_encoded import ReEncodedFile, read_re_encoded
from shoal.mirror.status import MirrorStatus
from shoal.model.errors import ConfigError, LedgerError, ShoalError, SystemFailure, UsageError
from shoal.model.result import Result
from shoal.model.serialised import to_plain
from shoal.model.topics import TopicPartition
from shoal.net.messages import decode_driver_message, decode_worker_message, encode_message
from shoal.wire.records.records import Record
from shoal.workers.specs import Assignment
from shoal.workload.specs import ConsumerSpec, ProducerSpec, ScanSpec
from support.formats.stored import FORMATS, STORED, unpack

BYTES: dict[str, list[str]] = json.loads((FORMATS / "bytes.json").read_text())

Codec = tuple[Callable[[bytes], Any], Callable[[Any], bytes | bytearray]]


def by_json(cls: Any) -> Codec:
    """For classes that become JSON objects."""
    return (
        lambda data: cls.from_json(json.loads(data)),
        lambda value: json.dumps(value.to_json(), separators=(",", ":")).encode(),
    )


def by_text(cls: Any) -> Codec:
    """For classes that become text."""
    return lambda data: cls.from_json(data.decode()), lambda value: value.to_json().encode()


CODECS: dict[str, Codec] = {
    "metadata log, commit 4ac8f05": (records.decode_record, records.encode_record),
    "requests to controllers": (values.decode_value, values.encode_value),
    "broker process": by_text(BrokerSpec),
    "controller process": by_text(ControllerSpec),
    "supervisor process": by_text(SupervisorSpec),
    "checkpoint": (checkpoints._checkpoint, checkpoints._value),
    "lines of workers": (decode_worker_message, lambda value: encode_message(value).rstrip()),
    "lines of the driver": (decode_driver_message, lambda value: encode_message(value).rstrip()),
    "assignment": by_text(Assignment),
    "producer": by_json(ProducerSpec),
    "consumer": by_json(ConsumerSpec),
    "scan": by_json(ScanSpec),
    "mirror": by_json(MirrorConfig),
    "status of a mirror": by_json(MirrorStatus),
}
CASES = [(name, text) for name in CODECS for text in BYTES[name]]


@pytest.mark.parametrize(("name", "text"), CASES)
def test_fixed_bytes_are_read_and_written_as_they_are(name: str, text: str) -> None:
    decode, encode = CODECS[name]
    assert bytes(encode(decode(text.encode()))) == text.encode()


def test_every_stored_line_has_a_codec() -> None:
    assert BYTES.keys() == CODECS.keys() | {
        "checkpoint, commit 4ac8f05",
        "checkpoint, format 2",
        "checkpoint, format 3",
    }
    assert {json.loads(text)["type"] for text in BYTES["metadata log, commit 4ac8f05"]} == {
        cls.type for cls in records._CLASSES.values()
    }


@pytest.mark.parametrize("text", BYTES["checkpoint, commit 4ac8f05"])
def test_checkpoints_of_format_1_are_the_first_generation(text: str) -> None:
    found = checkpoints._checkpoint(text.encode())
    said = json.loads(text)
    assert (found.source_offset, found.target_offset) == (
        said["source_offset"],
        said["target_offset"],
    )
    assert (found.delivery, found.sequence) == (said["delivery"], said["sequence"])
    assert (found.generation, found.began_at, found.source_epochs) == (1, -1, ())


@pytest.mark.parametrize(
    "text", [*BYTES["checkpoint, format 2"], *BYTES["checkpoint, format 3"]], ids=["2", "3"]
)
def test_checkpoints_of_former_formats_are_read_and_written_in_the_new_one(text: str) -> None:
    found = checkpoints._checkpoint(text.encode())
    said = json.loads(text)
    plain = json.loads(json.dumps(to_plain(found)))
    assert plain.pop("lost") == 0
    assert {name: plain[name] for name in said if name != "format"} == {
        name: each for name, each in said.items() if name != "format"
    }
    written = checkpoints._value(found)
    assert json.loads(written)["format"] == checkpoints.FORMAT
    assert len(written) <= len(text)
    assert checkpoints._checkpoint(written) == found


def test_a_checkpoint_of_an_unknown_format_is_refused() -> None:
    [text, *_] = BYTES["checkpoint"]
    for change, reason in (
        ({"format": 9}, "has version 9; this version of shoal reads 1 and 2 and 3 and 4"),
        ({"surprise": 1}, "unknown field 'surprise'"),
    ):
        topic = checkpoints.CheckpointTopic.__new__(checkpoints.CheckpointTopic)
        topic._partition = TopicPartition("__shoal_mirror_x", 0)
        value = json.dumps(json.loads(text) | change).encode()
        with pytest.raises(ConfigError, match=reason):
            topic._apply_record(Record(0, 0, b'{"topic": "t", "partition": 0}', value))


@pytest.mark.parametrize("cls", [BrokerSpec, SupervisorSpec, Assignment])
def test_processes_of_another_version_are_refused(cls: Any) -> None:
    name = {BrokerSpec: "broker process", SupervisorSpec: "supervisor process"}.get(
        cls, "assignment"
    )
    body = json.loads(BYTES[name][0])
    for change, reason in (({"version": 9}, "has version 9"), ({"surprise": 1}, "unknown field")):
        with pytest.raises((SystemFailure, UsageError), match=reason) as error:
            cls.from_json(json.dumps(body | change))
        assert error.value.remedy is not None


# Files


CLUSTER = {
    "format": 3,
    "cluster_id": "wNdRBrcuR3GIzKzQtV93tA",
    "ports": {"1": 36549},
    "controllers": {"101": 36925},
    "profile": None,
    "properties": {"broker.rack": "a"},
}


def test_the_description_of_a_cluster(tmp_path: Path) -> None:
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps(CLUSTER, indent=1))
    before = file.read_bytes()
    folder = ClusterFolder(tmp_path)
    folder.load()
    assert (folder.ports, folder.controllers) == ({1: 36549}, {101: 36925})
    folder.save()
    assert file.read_bytes() == before
    refused = (CLUSTER | {"colour": 1}, {n: v for n, v in CLUSTER.items() if n != "controllers"})
    for content, reason in zip(refused, ("unknown field 'colour'", "lacks the field"), strict=True):
        file.write_text(json.dumps(content))
        with pytest.raises(SystemFailure, match=reason):
            ClusterFolder(tmp_path).load()


def test_where_a_supervisor_listens(tmp_path: Path) -> None:
    folder = ClusterFolder(tmp_path)
    folder.publish_control(ControlAddress(7, 8, "token"))
    file = tmp_path / "supervisor.json"
    assert file.read_text() == '{"version": 2, "pid": 7, "port": 8, "token": "token"}'
    assert folder.control() == ControlAddress(7, 8, "token")
    # As commit 4ac8f05 wrote it.
    file.write_text('{"pid": 7, "port": 8, "token": "token"}')
    with pytest.raises(SystemFailure, match="has version 1; this version of shoal reads 2"):
        folder.control()


def test_the_disk_of_a_controller_of_commit_4ac8f05(tmp_path: Path) -> None:
    folder = unpack("cluster-with-quorum", tmp_path) / "controller-101"
    member, state = folder / MEMBER_NAME, folder / QUORUM_STATE_NAME
    before = member.read_bytes(), state.read_bytes()
    key, voters = read_member(folder)
    write_member(folder, key, voters)
    write_quorum_state(folder, read_quorum_state(folder))
    assert (member.read_bytes(), state.read_bytes()) == before


def test_the_draft_of_a_quorum(tmp_path: Path) -> None:
    draft = FoundingState(101, UUID(int=1), ((101, UUID(int=1)),))
    draft.save(tmp_path)
    file = tmp_path / FOUNDING_NAME
    one = "00000000-0000-0000-0000-000000000001"
    proposal = f'"directory_id": "{one}", "proposal": [[101, "{one}"]]'
    assert file.read_text() == f'{{"version": 2, "node_id": 101, {proposal}}}'
    file.write_text(f'{{"node_id": 101, {proposal}}}')  # as commit 4ac8f05 wrote it
    assert FoundingState.open(tmp_path, 101) == draft
    file.write_text(f'{{"version": 3, "node_id": 101, {proposal}}}')
    with pytest.raises(DamagedFile, match="has version 3"):
        FoundingState.open(tmp_path, 101)


def test_a_shutdown_marker(tmp_path: Path) -> None:
    folder = unpack("mirror-idempotent", tmp_path) / "target" / "broker-1"
    file = folder / MARKER_NAME
    said = json.loads(file.read_text())
    marker = ShutdownMarker(folder)
    assert marker.begin("next") is LastShutdown.CLEANLY
    assert (marker.clean_incarnation, marker.directory_id) == (
        said["incarnation"],
        said["directory_id"],
    )
    assert json.loads(file.read_text()) == said | {"begun": ["next"]}
    file.write_text(json.dumps(said | {"format": 2}))
    with pytest.raises(DamagedFile, match="has format 2") as error:
        ShutdownMarker(folder).begin("next")
    assert error.value.remedy is not None
    assert json.loads(file.read_text())["format"] == 2


def test_batches_that_were_encoded_again(tmp_path: Path) -> None:
    file = tmp_path / "re-encoded.jsonl"
    ReEncodedFile(file).declare(TopicPartition("t", 1), 5)
    written = '{"format": 1, "topic": "t", "partition": 1, "offset": 5}\n'
    assert file.read_text() == written
    file.write_text(written + '{"topic": "t", "partition": 1, "offset": 6}\n')
    assert read_re_encoded(file) == {(TopicPartition("t", 1), 5), (TopicPartition("t", 1), 6)}
    file.write_text(written.replace("1", "2", 1))
    with pytest.raises(LedgerError, match="has version 2"):
        read_re_encoded(file)


def test_a_result_keeps_what_commit_4ac8f05_wrote(tmp_path: Path) -> None:
    stored = json.loads((unpack("run", tmp_path) / "result.json").read_text())
    written = json.loads(json.dumps(Result.from_json(stored).to_json()))
    added = {"batch_loss_rate_bound_95", "batches", "lost_workers", "thresholds"}
    assert _difference(stored, written) == added
    assert Result.from_json(written) == Result.from_json(stored)


def _difference(before: Any, after: Any) -> set[str]:
    """Names that are new; everything else must be as it was."""
    if not isinstance(before, dict):
        if isinstance(before, list) and before and isinstance(before[0], dict):
            pairs = zip(before, after, strict=True)
            return {name for old, new in pairs for name in _difference(old, new)}
        assert before == after
        return set()
    assert before.keys() <= after.keys()
    inner = {name for key in before for name in _difference(before[key], after[key])}
    return inner | {name for name in after if name not in before}


def test_errors_of_formats_are_ours() -> None:
    """So that the command line shows a sentence and no traceback."""
    for cls in (records.UnknownRecord, DamagedFile, SystemFailure, LedgerError, ConfigError):
        assert issubclass(cls, ShoalError)
    assert STORED.is_dir()
