"""Options and offsets of the data source, before anything is read."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.client.results import EARLIEST, LATEST
from shoal.model.errors import ConfigError, SystemFailure
from shoal.model.topics import TopicPartition
from shoal.pipeline.source.offset_ranges import (
    Range,
    check_data_loss,
    limit_ends,
    refuse_reversed,
    split,
)
from shoal.pipeline.source.options import Bound, parse

SERVERS = {"kafka.bootstrap.servers": "h:1"}
LOGS = [TopicPartition("t", partition) for partition in range(4)]


def test_options_mean_what_they_mean_to_the_connector() -> None:
    query = parse(
        SERVERS
        | {
            "subscribe": "a, b",
            "startingOffsets": '{"a":{"0":5},"b":{"0":-2}}',
            "endingTimestamp": "1000",
            "kafka.isolation.level": "read_committed",
            "minPartitions": "9",
            "failOnDataLoss": "false",
            "maxTriggerDelay": "1500",
            "kafkaConsumer.pollTimeoutMs": "512",
        }
    )
    assert query.topics == ("a", "b")
    assert query.start.by_partition == {TopicPartition("a", 0): 5, TopicPartition("b", 0): EARLIEST}
    assert query.end == Bound(1000, is_time=True)
    assert query.properties == {"bootstrap.servers": "h:1", "isolation.level": "read_committed"}
    assert (query.min_partitions, query.fail_on_data_loss) == (9, False)
    assert query.max_trigger_delay_s == 1.5


def test_a_table_begins_at_the_start_and_a_stream_at_the_end() -> None:
    query = SERVERS | {"subscribePattern": "a.*"}
    assert parse(query).start == Bound(EARLIEST)
    assert parse(query, is_stream=True).start == Bound(LATEST)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"subscribe": "t"}, "kafka.bootstrap.servers"),
        (SERVERS, "exactly one of"),
        (SERVERS | {"subscribe": "t", "assign": '{"t":[0]}'}, "exactly one of"),
        (SERVERS | {"assign": "[]"}, "assign"),
        (SERVERS | {"subscribePattern": "("}, "subscribePattern"),
        (SERVERS | {"subscribe": "t", "startingOffset": "earliest"}, "startingoffset"),
        (SERVERS | {"subscribe": "t", "startingOffsets": "{"}, "startingOffsets"),
        (SERVERS | {"subscribe": "t", "endingOffsets": "earliest"}, "endingOffsets"),
        (SERVERS | {"subscribe": "t", "minPartitions": "0"}, "minpartitions"),
        (SERVERS | {"subscribe": "t", "minPartitions": "x"}, "minpartitions"),
        (SERVERS | {"subscribe": "t", "mode": "rows"}, "mode"),
        (SERVERS | {"subscribe": "t", "maxTriggerDelay": "soon"}, "maxTriggerDelay"),
        (
            SERVERS | {"subscribe": "t", "minOffsetsPerTrigger": "2", "maxOffsetsPerTrigger": "1"},
            "minOffsetsPerTrigger",
        ),
        (SERVERS | {"subscribe": "t", "includeHeaders": "maybe"}, "includeheaders"),
    ],
)
def test_a_bad_option_is_named(options: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        parse(options)


@pytest.mark.parametrize("name", ["auto.offset.reset", "key.deserializer", "enable.auto.commit"])
def test_client_properties_that_the_query_decides_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        parse(SERVERS | {"subscribe": "t", f"kafka.{name}": "x"})


@pytest.mark.parametrize(
    ("options", "is_stream", "words"),
    [
        ({"startingOffsets": "latest"}, False, "startingOffsets cannot be latest"),
        ({"startingOffsets": '{"t":{"0":5,"1":-1}}'}, False, "startingOffsets cannot be latest"),
        ({"endingOffsets": '{"t":{"0":5,"1":-2}}'}, False, "endingOffsets cannot be earliest"),
        ({"endingOffsets": "latest"}, True, "a stream has no end"),
        ({"endingTimestamp": "5"}, True, "a stream has no end"),
    ],
)
def test_tables_and_streams_refuse_what_the_connector_refuses(
    options: dict[str, str], is_stream: bool, words: str
) -> None:
    query = SERVERS | {"subscribe": "t"} | options
    with pytest.raises(ConfigError, match=words):
        parse(query, is_stream=is_stream)
    if "startingOffsets" in options:
        parse(query, is_stream=True)


def test_a_table_that_ends_before_it_begins_is_refused() -> None:
    refuse_reversed({LOGS[0]: 7}, {LOGS[0]: 7})
    with pytest.raises(
        ConfigError, match=r"t-0: the starting offset 999 is above the ending offset 20"
    ):
        refuse_reversed({LOGS[0]: 999}, {LOGS[0]: 20})


@given(
    st.lists(st.integers(1, 1000), min_size=1, max_size=4),
    st.integers(1, 40),
    st.none() | st.integers(1, 300),
)
def test_pieces_are_the_ranges_cut(sizes: list[int], least: int, most: int | None) -> None:
    ranges = [Range(LOGS[i], 10 * i, 10 * i + size) for i, size in enumerate(sizes)]
    pieces = split(ranges, least, most=most)
    assert most is None or all(piece.end - piece.start <= most for piece in pieces)
    for part in ranges:
        own = [piece for piece in pieces if piece.log == part.log]
        assert own[0].start == part.start
        assert own[-1].end == part.end
        assert all(a.end == b.start for a, b in pairwise(own))
        assert all(piece.end > piece.start for piece in own)
    assert len(pieces) >= len(ranges)


def test_a_stream_whose_logs_vanish_or_shrink_has_lost_data() -> None:
    query = SERVERS | {"subscribePattern": "t.*"}
    starts = {LOGS[0]: 7, LOGS[1]: 7}
    check_data_loss(parse(query), starts, {LOGS[0]: 7, LOGS[1]: 9, LOGS[2]: 3})
    for ends, said in (
        ({LOGS[0]: 7}, "t-1 was deleted"),
        ({**starts, LOGS[1]: 6}, "t-1 ends at 6"),
    ):
        with pytest.raises(SystemFailure, match=said):
            check_data_loss(parse(query), starts, ends)
        check_data_loss(parse(query | {"failOnDataLoss": "false"}), starts, ends)


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=4), st.integers(1, 3000))
def test_a_limit_is_shared_and_used_up(sizes: list[int], most: int) -> None:
    starts = {LOGS[i]: 7 for i in range(len(sizes))}
    ends = {LOGS[i]: 7 + size for i, size in enumerate(sizes)}
    reached = limit_ends(starts, ends, most)
    assert all(starts[log] <= reached[log] <= ends[log] for log in starts)
    assert sum(reached[log] - 7 for log in starts) == min(most, sum(sizes))
