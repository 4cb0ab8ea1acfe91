"""CompareAndAppend (API key 10000, Shoal's own), version 0, both sides: the writes of mirrors.

    request   timeout (ms) int32, then by topic and partition:
              partition int32, mirror's epoch int32, expected end int64, records
    response  by topic and partition:
              partition int32, error code int16, log end int64, error message

Both are flexible (KIP-482). A broker that serves it has the finalised feature
`shoal.compare-and-append`; ApiVersions does not list the key.
"""

from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple
from uuid import UUID

from shoal.wire.api_keys import ApiKey
from shoal.wire.errors import Unencodable
from shoal.wire.framing import Part
from shoal.wire.primitives import INT32
from shoal.wire.record_messages import NO_RECORDS, Versions, Writer, encoder, read_topics

FEATURE: Final = "shoal.compare-and-append"
VERSION: Final = 0
_VERSIONS = Versions(ApiKey.COMPARE_AND_APPEND, range(1), flexible_from=0, topic_ids_from=1)
_ENTRY = Struct(">iiq")
_ANSWER = Struct(">ihq")


class AppendEntry(NamedTuple):
    """What to append to one partition; `records` are complete batches with their offsets."""

    topic: str
    partition: int
    mirror_epoch: int
    expected_end: int
    records: Sequence[Part]
    topic_id: UUID | None = None


class ReceivedEntry(NamedTuple):
    """An entry as a broker decodes it: the records are a view into the frame."""

    topic: str
    partition: int
    mirror_epoch: int
    expected_end: int
    records: memoryview


class EntryAnswer(NamedTuple):
    """The result of an entry; `log_end` is -1 if it is unknown."""

    topic: str
    partition: int
    error_code: int = 0
    log_end: int = -1
    error_message: str | None = None
    topic_id: UUID | None = None


@encoder
def encode_request(
    *, correlation_id: int, client_id: str | None, timeout_ms: int, entries: Sequence[AppendEntry]
) -> list[Part]:
    """The parts of a request, to be framed."""
    if len({(entry.topic, entry.partition) for entry in entries}) != len(entries):
        raise Unencodable("a CompareAndAppend request has the same partition twice")
    writer: Writer[Part] = _VERSIONS.request_writer(
        VERSION, correlation_id=correlation_id, client_id=client_id
    )
    writer.output += INT32.pack(timeout_ms)

    def write(entry: AppendEntry) -> None:
        writer.output += _ENTRY.pack(entry.partition, entry.mirror_epoch, entry.expected_end)
        writer.records(*entry.records)
        writer.no_tags()

    writer.topics(entries, write)
    writer.no_tags()
    return writer.finish()


def decode_request(frame: Part, position: int) -> tuple[int, list[ReceivedEntry]]:
    """The timeout and the entries of the request whose body begins at `position`."""
    cursor = _VERSIONS.request_cursor(VERSION, frame, position)
    timeout_ms: int = cursor.unpack(INT32, "timeout")[0]

    def read(topic: str, _: UUID | None) -> ReceivedEntry:
        partition, mirror_epoch, expected_end = cursor.unpack(_ENTRY, "entry")
        records = cursor.blob("records")
        cursor.tags("entry")
        return ReceivedEntry(
            topic,
            partition,
            mirror_epoch,
            expected_end,
            NO_RECORDS if records is None else records,
        )

    entries = read_topics(cursor, read, uses_ids=False, least_item_size=_ENTRY.size + 2)
    cursor.tags("CompareAndAppend request")
    return timeout_ms, entries


@encoder
def encode_response(*, correlation_id: int, answers: Sequence[EntryAnswer]) -> bytes:
    """A response, to be framed."""
    writer: Writer[Part] = _VERSIONS.response_writer(VERSION, correlation_id)

    def write(answer: EntryAnswer) -> None:
        writer.output += _ANSWER.pack(answer.partition, answer.error_code, answer.log_end)
        writer.string(answer.error_message)
        writer.no_tags()

    writer.topics(answers, write)
    writer.no_tags()
    return bytes(writer.output)


def decode_response(frame: Part) -> list[EntryAnswer]:
    """The answers of a response."""
    cursor = _VERSIONS.response_cursor(VERSION, frame)

    def read(topic: str, _: UUID | None) -> EntryAnswer:
        partition, error_code, log_end = cursor.unpack(_ANSWER, "answer")
        message = cursor.nullable_string("error message")
        cursor.tags("answer")
        return EntryAnswer(topic, partition, error_code, log_end, message)

    answers = read_topics(cursor, read, uses_ids=False, least_item_size=_ANSWER.size + 2)
    cursor.tags("CompareAndAppend response")
    return answers
