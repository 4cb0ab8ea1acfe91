"""Batches after a batch with a retriable error get the same error until it is retried."""

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.cluster import LiteCluster
from shoal.lite.partitions.admission.refusals import Refusals
from shoal.lite.storage.header import BatchHeader, unpack_header
from shoal.model.topics import TopicPartition
from support.lite.batches import batch_of
from support.lite.client import PlainClient
from support.lite.clusters import create_topic, eventually, in_sync, partition_of

T0 = TopicPartition("t", 0)
EARLY = ApiError(Code.NOT_ENOUGH_REPLICAS, "1 of 2")


def is_early(found: ApiError | None) -> bool:
    return found is not None and (found.code, str(found)) == (EARLY.code, str(EARLY))


def header(sequence: int, *, producer_id: int = 7, epoch: int = 0) -> BatchHeader:
    return unpack_header(memoryview(batch_of(b"x", producer=(producer_id, epoch, sequence))))


def test_only_what_follows_is_held_back() -> None:
    refusals = Refusals()
    refusals.add(T0, header(5), EARLY, 0)
    assert is_early(refusals.find_earlier_refusal(T0, header(6), 1))
    assert refusals.find_earlier_refusal(T0, header(4), 1) is None
    assert refusals.find_earlier_refusal(T0, header(5), 1) is None
    assert refusals.find_earlier_refusal(T0, header(6, producer_id=8), 1) is None
    assert refusals.find_earlier_refusal(TopicPartition("t", 1), header(6), 1) is None


def test_the_first_that_was_refused_counts() -> None:
    refusals = Refusals()
    refusals.add(T0, header(5), EARLY, 0)
    refusals.add(T0, header(6), ApiError(Code.NOT_LEADER_OR_FOLLOWER, "2 leads"), 1)
    assert is_early(refusals.find_earlier_refusal(T0, header(6), 2))
    # Each later batch extends the time for which it is remembered.
    assert is_early(refusals.find_earlier_refusal(T0, header(7), 5_001))


def test_sequences_begin_anew_behind_the_largest() -> None:
    refusals = Refusals()
    refusals.add(T0, header(2**31 - 1), EARLY, 0)
    assert is_early(refusals.find_earlier_refusal(T0, header(0), 1))


def test_it_ends_with_a_new_epoch_with_time_or_when_all_is_well() -> None:
    refusals = Refusals()
    refusals.add(T0, header(5), EARLY, 0)
    assert refusals.find_earlier_refusal(T0, header(6, epoch=1), 1) is None
    refusals.add(T0, header(5), EARLY, 0)
    assert refusals.find_earlier_refusal(T0, header(6), 60_000) is None
    refusals.add(T0, header(5), EARLY, 0)
    refusals.on_batch_written(T0, header(6))
    assert not refusals


def test_what_is_wrong_for_good_holds_nothing_back() -> None:
    refusals = Refusals()
    refusals.add(T0, header(5), ApiError(Code.MESSAGE_TOO_LARGE, "too large"), 0)
    refusals.add(T0, header(5, producer_id=-1), EARLY, 0)
    assert not refusals


def test_a_batch_behind_one_that_came_before_all_were_in_sync_waits_for_it() -> None:
    with LiteCluster(brokers=2, profile="strict") as cluster:
        create_topic(cluster, "t", 1, 2)
        leader = partition_of(cluster, "t").leader
        address = next(n for n in cluster.nodes() if n.id == leader)
        with PlainClient(f"{address.host}:{address.port}") as client:

            def send(sequence: int) -> Code:
                batch = batch_of(b"x", producer=(900, 0, sequence))
                return Code(client.produce("t", batch, acks=-1).error_code)

            assert send(0) == Code.NONE
            cluster.kill(3 - leader)
            eventually(lambda: in_sync(cluster, "t") == {leader})
            assert send(1) == Code.NOT_ENOUGH_REPLICAS
            cluster.restart(3 - leader)
            eventually(lambda: in_sync(cluster, "t") == {1, 2})
            # Without the rule it would be out of order, and librdkafka would begin a new epoch.
            assert send(2) == Code.NOT_ENOUGH_REPLICAS
            assert send(1) == Code.NONE
            assert send(2) == Code.NONE
            assert send(9) == Code.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_the_first_batch_of_a_producer_stays_its_first(client: PlainClient) -> None:
    def send(sequence: int) -> Code:
        return Code(client.produce("later", batch_of(b"x", producer=(901, 0, sequence))).error_code)

    assert send(0) == Code.UNKNOWN_TOPIC_OR_PARTITION
    client.create_topic("later")
    assert send(1) == Code.UNKNOWN_TOPIC_OR_PARTITION
    assert [send(0), send(1)] == [Code.NONE, Code.NONE]


def test_a_new_leader_waits_for_what_the_one_before_it_refused() -> None:
    with LiteCluster(brokers=2, profile="strict") as cluster:
        create_topic(cluster, "t", 1, 2)

        def send(sequence: int) -> Code:
            leader = partition_of(cluster, "t").leader
            address = next(n for n in cluster.nodes() if n.id == leader)
            with PlainClient(f"{address.host}:{address.port}") as client:
                batch = batch_of(b"x", producer=(902, 0, sequence))
                return Code(client.produce("t", batch).error_code)

        assert send(0) == Code.NONE
        assert send(2) == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
        cluster.move_leader("t", 0, 3 - partition_of(cluster, "t").leader)
        eventually(lambda: send(0) == Code.NONE)
        assert send(2) == Code.NOT_LEADER_OR_FOLLOWER
        assert [send(1), send(2)] == [Code.NONE, Code.NONE]
