"""Brokers register, are heard, are trusted or not, and go (KIP-631, and the boot rule)."""

from dataclasses import replace

import pytest

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.metadata.data.records import BrokerRecord, PartitionRecord
from shoal.lite.metadata.data.requests import (
    AllocateProducerIds,
    ControllerRequest,
    Heartbeat,
    Reassign,
    RegisterBroker,
    ReportBrokerExits,
    ReportLosses,
    UnregisterBroker,
)
from shoal.lite.metadata.data.state import ClusterState
from shoal.lite.metadata.rules.controller import Controller, ControllerSettings
from shoal.model.topics import TopicPartition
from support.controller.cluster import SESSION_MS, ControllerCluster


def refusal(cluster: ControllerCluster, request: ControllerRequest[object]) -> Code:
    with pytest.raises(ApiError) as refused:
        cluster.ask(request)
    return refused.value.code


def test_a_registration_that_is_repeated_changes_nothing() -> None:
    cluster = ControllerCluster(1)
    request = RegisterBroker(2, "me", "h", 1, "monday", "folder")
    epoch = cluster.ask(request).broker_epoch
    count = cluster.state.applied_count
    assert cluster.ask(request).broker_epoch == epoch
    assert cluster.state.applied_count == count


def test_every_registration_has_a_higher_epoch() -> None:
    cluster = ControllerCluster(2)
    epochs = [cluster.processes[1].epoch, cluster.processes[2].epoch]
    for _ in range(3):
        cluster.kill(1)
        cluster.start(1)
        epochs.append(cluster.processes[1].epoch)
    cluster.fail_over()
    cluster.kill(2)
    cluster.start(2)
    epochs.append(cluster.processes[2].epoch)
    assert epochs == sorted(set(epochs))


def test_beats_of_others_are_refused() -> None:
    cluster = ControllerCluster(1)
    epoch = cluster.processes[1].epoch
    assert refusal(cluster, Heartbeat(7, 0, 0)) is Code.BROKER_ID_NOT_REGISTERED
    assert refusal(cluster, Heartbeat(1, epoch - 1, 99)) is Code.STALE_BROKER_EPOCH


def test_a_broker_is_fenced_until_it_has_seen_its_registration() -> None:
    cluster = ControllerCluster()
    epoch = cluster.ask(RegisterBroker(1, "me", "h", 1, "b", "f")).broker_epoch
    behind = cluster.ask(Heartbeat(1, epoch, epoch))
    assert (behind.is_caught_up, behind.is_fenced) == (False, True)
    level = cluster.ask(Heartbeat(1, epoch, epoch + 1))
    assert (level.is_caught_up, level.is_fenced) == (True, False)


def test_a_broker_can_ask_to_be_fenced() -> None:
    cluster = ControllerCluster(2)
    cluster.create(factor=2)
    assert cluster.beat(1, want_fence=True).is_fenced
    assert cluster.partition().leader == 2
    assert not cluster.beat(1).is_fenced


def test_a_late_beat_of_a_dead_process_does_not_bring_it_back() -> None:
    cluster = ControllerCluster(2)
    cluster.create(factor=2)
    beat = Heartbeat(1, cluster.processes[1].epoch, cluster.observer.applied_count)
    cluster.kill(1)
    answer = cluster.ask(beat)
    assert answer.should_shut_down
    assert answer.is_fenced
    assert cluster.partition().leader == 2
    cluster.start(1)
    assert cluster.state.is_active(1)


def test_a_late_registration_of_a_dead_process_is_refused() -> None:
    cluster = ControllerCluster(1)
    cluster.ask(ReportBrokerExits({2: "stillborn"}))
    request = RegisterBroker(2, "stillborn", "h", 1, "b", "f")
    assert refusal(cluster, request) is Code.DUPLICATE_BROKER_REGISTRATION
    cluster.start(2)
    assert cluster.state.is_active(2)


@pytest.mark.parametrize("folder", ["folder-1", "a disk that was lost"])
@pytest.mark.parametrize("is_heard", [True, False])
def test_a_registration_that_was_overtaken_is_refused(folder: str, is_heard: bool) -> None:
    """The power went, and what the process before had sent comes after all."""
    cluster = ControllerCluster(1)
    late = RegisterBroker(1, "late", "h", 1, "monday", folder, (), cluster.epoch_of(1))
    cluster.start(1, "tuesday")
    cluster.create(factor=1)
    if not is_heard:
        cluster.processes[1].is_heard = False
        cluster.wait(SESSION_MS + 100)
    known = cluster.state.snapshot()
    assert refusal(cluster, late) is Code.STALE_BROKER_EPOCH
    assert cluster.state.snapshot() == known


def test_who_has_the_folder_next_need_not_wait_for_the_session() -> None:
    cluster = ControllerCluster(1)
    cluster.register(1)
    other = RegisterBroker(1, "other", "h", 1, "monday", "another folder", (), cluster.epoch_of(1))
    assert refusal(cluster, other) is Code.DUPLICATE_BROKER_REGISTRATION


@pytest.mark.parametrize("tries", [0, 1, 5])
def test_an_older_copy_of_a_folder_is_refused_however_often_it_is_started(tries: int) -> None:
    cluster = ControllerCluster(1)
    cluster.create(factor=1)
    cluster.kill(1)
    cluster.start(1)
    cluster.kill(1)
    [folder] = cluster.folders.values()
    earlier = ("process-1", *(f"copy-{number}" for number in range(tries)))
    copy = RegisterBroker(1, "copy", "h", 1, "monday", folder, earlier, cluster.epoch_of(1))
    assert refusal(cluster, copy) is Code.INVALID_REGISTRATION
    assert cluster.partition().in_sync == (1,)
    # As a folder that nobody knows it may come in, and is not relied on.
    cluster.ask(replace(copy, directory_id="unknown"))
    assert cluster.partition().lost == (1,)


def test_a_late_copy_of_what_a_broker_told_of_its_losses_changes_nothing() -> None:
    cluster = ControllerCluster(3, properties={"min.insync.replicas": "2"})
    cluster.create()
    cluster.kill(1, 2, 3)
    epoch = cluster.register(1).epoch
    report = ReportLosses(1, epoch, [cluster.partition().key])
    cluster.ask(report)
    assert cluster.partition().in_sync == (2, 3)
    cluster.start(2)
    cluster.beat(1)
    cluster.expand(1)
    known = cluster.state.snapshot()
    cluster.ask(report)
    assert cluster.state.snapshot() == known


def test_a_broker_that_ends_by_itself_can_be_started_at_once() -> None:
    cluster = ControllerCluster(2)
    cluster.stop(1)
    cluster.start(1)
    assert cluster.state.is_active(1)


def test_a_controller_that_slept_fences_nobody_for_its_own_silence() -> None:
    cluster = ControllerCluster(3)
    cluster.create()
    cluster.now_ms += 10 * SESSION_MS
    cluster.tick()
    assert all(map(cluster.state.is_active, (1, 2, 3)))
    # From then on they must be heard again.
    cluster.processes[1].is_heard = False
    cluster.wait(SESSION_MS + 100)
    assert [cluster.state.is_active(b) for b in (1, 2, 3)] == [False, True, True]


def test_producer_ids_are_given_once() -> None:
    cluster = ControllerCluster(2)
    blocks = []
    for broker_id in (1, 2, 1):
        epoch = cluster.processes[broker_id].epoch
        blocks.append(cluster.ask(AllocateProducerIds(broker_id, epoch)))
        cluster.fail_over()
    ids = [i for block in blocks for i in range(block.first, block.first + block.count)]
    assert len(set(ids)) == len(ids) == 3000
    assert refusal(cluster, AllocateProducerIds(1, 0)) is Code.STALE_BROKER_EPOCH


def test_a_broker_is_removed_when_nothing_is_left_of_it() -> None:
    cluster = ControllerCluster(3)
    cluster.create(factor=2)
    assert refusal(cluster, UnregisterBroker(9)) is Code.BROKER_ID_NOT_REGISTERED
    assert refusal(cluster, UnregisterBroker(1)) is Code.INVALID_REQUEST
    cluster.kill(1)
    assert refusal(cluster, UnregisterBroker(1)) is Code.INVALID_REQUEST
    cluster.ask(Reassign({TopicPartition("t", 0): (2, 3)}))
    cluster.expand(3)
    cluster.ask(UnregisterBroker(1))
    assert cluster.state.brokers.keys() == {2, 3}
    cluster.start(1)
    assert cluster.state.is_active(1)


# The boot rule


@pytest.mark.parametrize(
    ("is_same_folder", "is_same_boot", "clean", "keeps"),
    [
        (True, True, None, True),
        (True, True, "it", True),
        (True, False, "it", True),
        (True, False, None, False),
        (True, False, "another", False),
        (False, True, None, False),
        (False, True, "it", False),
        (False, False, "it", False),
    ],
)
def test_who_has_its_data_keeps_its_place(
    is_same_folder: bool, is_same_boot: bool, clean: str | None, keeps: bool
) -> None:
    cluster = ControllerCluster(1, properties={"min.insync.replicas": "2"})
    cluster.start(2)
    cluster.create("sole", factor=1)
    cluster.create("eligible", factor=2)
    [incarnation] = [cluster.processes[1].incarnation]
    cluster.kill(1)
    assert cluster.partition("sole").in_sync == (1,)
    assert cluster.partition("eligible").eligible == (1,)
    request = RegisterBroker(
        1,
        "next",
        "h",
        1,
        "monday" if is_same_boot else "tuesday",
        cluster.folders[1] if is_same_folder else "new",
        earlier=(incarnation,),
        previous_epoch=cluster.epoch_of(1),
        clean_incarnation=incarnation if clean == "it" else clean,
    )
    cluster.ask(request)
    assert cluster.partition("sole").in_sync == ((1,) if keeps else ())
    assert cluster.partition("sole").lost == (() if keeps else (1,))
    assert cluster.partition("eligible").eligible == ((1,) if keeps else ())


def test_a_broker_that_was_not_missed_loses_its_place_too() -> None:
    # The whole machine lost power: the controller comes back and still counts on everyone.
    cluster = ControllerCluster(2)
    cluster.create(factor=2)
    cluster.fail_over()
    assert cluster.partition().in_sync == (1, 2)
    cluster.now_ms += SESSION_MS // 2
    cluster.tick()
    cluster.now_ms += SESSION_MS // 2
    cluster.start(1, boot_id="tuesday")
    assert cluster.partition().in_sync == (2,)
    assert cluster.partition().leader == 2


def test_what_was_lost_is_written_before_the_registration() -> None:
    # A crash that leaves the first part of the entry must not leave a trusted broker.
    cluster = ControllerCluster(2)
    cluster.create("a", factor=1, partitions=2)
    cluster.create("b", factor=2)
    cluster.kill(1)
    cluster.register(1, boot_id="tuesday")
    entry = cluster.entries[-1]
    [registration] = [n for n, record in enumerate(entry) if isinstance(record, BrokerRecord)]
    losses = [n for n, record in enumerate(entry) if isinstance(record, PartitionRecord)]
    assert losses
    assert max(losses) < registration


def test_a_new_controller_puts_right_what_an_old_one_left() -> None:
    cluster = ControllerCluster(3)
    cluster.create()
    state = ClusterState()
    for record in cluster.state.snapshot():
        state.apply(record)
    # Of an entry that fenced broker 1, only the first record is there.
    state.apply(replace(state.brokers[1], fenced=True))
    outcome = Controller(state, ControllerSettings()).activate(0, "cluster")
    assert state.topics["t"].partitions[0].leader == 2
    assert state.topics["t"].partitions[0].in_sync == (2, 3)
    # Cluster-wide settings that were given are given no more; then the one partition.
    assert [record for record in outcome.records if isinstance(record, PartitionRecord)]
