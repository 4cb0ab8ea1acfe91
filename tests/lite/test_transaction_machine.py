"""The transaction coordinator's decisions, without a broker: by script, and by chance."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.lite.base.codes import Code
from shoal.lite.coordinator.transactions.machine import (
    MachineSettings,
    TransactionDecision,
    TransactionMachine,
)
from shoal.lite.coordinator.transactions.model import (
    LARGEST_EPOCH,
    NO_IDENTITY,
    PREPARED,
    ProducerIdAndEpoch,
    Transaction,
    TxnState,
)
from shoal.lite.coordinator.transactions.records import (
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from shoal.model.topics import TopicPartition

ID = "id"
TP = TopicPartition("topic", 0)
OTHER = TopicPartition("topic", 1)
DAY_MS = 86_400_000


class Script:
    """A machine whose decisions are committed at once, unless a test says otherwise."""

    def __init__(self) -> None:
        self.machine = TransactionMachine(MachineSettings())
        self.now_ms = 1_000
        self.next_id = 100

    @property
    def state(self) -> Transaction:
        return self.machine.transactions[ID]

    def commit(self, transaction: Transaction) -> None:
        """Commit and replay a record."""
        self.machine.set_pending(transaction)
        value = decode_value(ID, encode_value(transaction, 1))
        self.machine.replay(ID, value)

    def _apply(self, decide: Any) -> TransactionDecision:
        decision: TransactionDecision = decide(None)
        if decision.needs_producer_id:
            self.next_id += 1
            decision = decide(self.next_id)
        if decision.write is not None:
            self.commit(decision.write)
        return decision

    def init(
        self, expected: ProducerIdAndEpoch | None = None, protocol: int = 2
    ) -> TransactionDecision:
        return self._apply(
            lambda new: self.machine.init(
                self.now_ms, ID, 60_000, expected=expected, protocol=protocol, new_producer_id=new
            )
        )

    def add(self, who: ProducerIdAndEpoch, *tps: TopicPartition, protocol: int = 2) -> Code:
        decision = self.machine.add_partitions(self.now_ms, ID, who, tps, protocol=protocol)
        if decision.write is not None:
            self.commit(decision.write)
        return decision.code

    def end(
        self, who: ProducerIdAndEpoch, *, commits: bool, protocol: int = 2
    ) -> TransactionDecision:
        return self._apply(
            lambda new: self.machine.end(
                self.now_ms, ID, who, is_commit=commits, protocol=protocol, new_producer_id=new
            )
        )

    def complete(self) -> None:
        done = self.machine.complete(self.now_ms, ID)
        assert done is not None
        self.commit(done)


def begin_transaction(protocol: int = 2) -> tuple[Script, ProducerIdAndEpoch]:
    script = Script()
    who = script.init().identity
    assert script.add(who, TP, protocol=protocol) == Code.NONE
    return script, who


def test_the_first_protocol_keeps_its_epoch() -> None:
    script, who = begin_transaction(protocol=0)
    assert script.end(who, commits=True, protocol=0).code == Code.NONE
    assert script.state.state is TxnState.PREPARE_COMMIT
    assert script.end(who, commits=True, protocol=0).code == Code.CONCURRENT_TRANSACTIONS
    assert script.end(who, commits=False, protocol=0).code == Code.CONCURRENT_TRANSACTIONS
    assert script.add(who, OTHER, protocol=0) == Code.CONCURRENT_TRANSACTIONS
    script.complete()
    assert script.end(who, commits=False, protocol=0).code == Code.INVALID_TXN_STATE
    assert script.end(who, commits=True, protocol=0).code == Code.NONE
    assert (script.state.identity, script.state.partitions) == (who, frozenset())
    assert script.add(who, OTHER, protocol=0) == Code.NONE
    assert script.state.partitions == {OTHER}


def test_the_second_protocol_has_an_epoch_for_each_transaction() -> None:
    script, who = begin_transaction()
    first = script.end(who, commits=True)
    assert first.identity == ProducerIdAndEpoch(who.producer_id, who.epoch + 1)
    assert script.end(who, commits=True).code == Code.CONCURRENT_TRANSACTIONS
    # The producer is ahead, and its next transaction has nothing to write: it must come back.
    for commits in (True, False):
        code = script.end(first.identity, commits=commits).code
        assert code == Code.CONCURRENT_TRANSACTIONS
    script.complete()
    assert script.end(who, commits=True) == TransactionDecision(identity=first.identity)
    assert script.add(who, TP) == Code.PRODUCER_FENCED
    assert script.add(first.identity, TP) == Code.NONE


def test_epochs_run_out_and_a_new_producer_id_follows() -> None:
    script, who = begin_transaction()
    last = ProducerIdAndEpoch(who.producer_id, LARGEST_EPOCH - 1)
    script.commit(replace(script.state, epoch=last.epoch))
    ended = script.end(last, commits=True)
    assert (ended.identity.producer_id > who.producer_id, ended.identity.epoch) == (True, 0)
    assert script.state.identity == ProducerIdAndEpoch(who.producer_id, LARGEST_EPOCH), (
        "for the markers"
    )
    assert script.end(last, commits=True).code == Code.CONCURRENT_TRANSACTIONS
    script.complete()
    assert script.state.identity == ended.identity
    assert script.end(last, commits=True) == TransactionDecision(identity=ended.identity)
    assert script.add(ended.identity, TP) == Code.NONE


def test_starting_again_with_used_up_epochs() -> None:
    script = Script()
    who = script.init().identity
    last = ProducerIdAndEpoch(who.producer_id, LARGEST_EPOCH - 1)
    script.commit(replace(script.state, epoch=last.epoch))
    newer = script.init(last)
    assert (newer.identity.producer_id > who.producer_id, newer.identity.epoch) == (True, 0)
    # The answer was lost, and the producer retries with its old identity.
    again = script.init(last)
    assert (again.code, again.identity.producer_id) == (Code.NONE, newer.identity.producer_id)


@pytest.mark.parametrize("protocol", [0, 2])
def test_a_producer_that_takes_over_fences_and_retries(protocol: int) -> None:
    script, who = begin_transaction(protocol)
    assert script.init(protocol=protocol).code == Code.CONCURRENT_TRANSACTIONS
    assert script.state.state is TxnState.PREPARE_ABORT
    assert script.state.epoch == who.epoch + 1
    assert script.end(who, commits=True, protocol=0).code == Code.PRODUCER_FENCED
    assert script.init().code == Code.CONCURRENT_TRANSACTIONS
    script.complete()
    taken = script.init()
    assert (taken.code, taken.identity.epoch) == (Code.NONE, who.epoch + 2)
    assert script.init(who).code == Code.PRODUCER_FENCED


def test_a_producer_recovers_from_a_time_out_by_its_old_epoch() -> None:
    script, who = begin_transaction()
    [abort] = script.machine.tick(script.now_ms + 60_000)
    assert isinstance(abort, Transaction)
    script.commit(abort)
    script.complete()
    recovered = script.init(who)
    assert (recovered.code, recovered.identity) == (
        Code.NONE,
        ProducerIdAndEpoch(who.producer_id, who.epoch + 1),
    )


def test_what_is_pending_keeps_others_waiting() -> None:
    script, who = begin_transaction()
    decision = script.machine.end(2_000, ID, who, is_commit=True, protocol=2, new_producer_id=None)
    assert decision.write is not None
    script.machine.set_pending(decision.write)
    assert script.end(who, commits=True).code == Code.CONCURRENT_TRANSACTIONS
    assert script.add(who, OTHER) == Code.CONCURRENT_TRANSACTIONS
    assert script.init().code == Code.CONCURRENT_TRANSACTIONS
    assert script.machine.complete(2_000, ID) is None
    # It was certainly not written: nothing has happened.
    script.machine.forget_pending(ID)
    assert script.state.state is TxnState.ONGOING
    assert script.add(who, OTHER) == Code.NONE


def test_time_aborts_what_is_open_and_forgets_what_is_not_used() -> None:
    script, who = begin_transaction()
    assert script.machine.tick(script.now_ms + 59_999) == []
    [abort] = script.machine.tick(script.now_ms + 60_000)
    assert isinstance(abort, Transaction)
    assert (abort.state, abort.epoch) == (TxnState.PREPARE_ABORT, who.epoch + 1)
    script.commit(abort)
    assert script.machine.tick(script.now_ms + 8 * DAY_MS) == []
    script.complete()
    assert script.machine.tick(script.now_ms + 6 * DAY_MS) == []
    assert script.machine.tick(script.now_ms + 8 * DAY_MS) == [ID]
    script.machine.replay(ID, None)
    assert script.add(who, TP) == Code.INVALID_PRODUCER_ID_MAPPING


def test_partitions_are_verified() -> None:
    script, who = begin_transaction(protocol=0)
    verdict = script.machine.verify(ID, who, [TP, OTHER])
    assert verdict == {TP: Code.NONE, OTHER: Code.TRANSACTION_ABORTABLE}
    assert script.machine.verify("other", who, [TP]) is Code.INVALID_PRODUCER_ID_MAPPING
    assert script.machine.verify(ID, who._replace(epoch=9), [TP]) is Code.PRODUCER_FENCED


@given(
    state=st.sampled_from(TxnState),
    partitions=st.frozensets(
        st.builds(TopicPartition, st.text(min_size=1, max_size=5), st.integers(0, 9)), max_size=5
    ),
    numbers=st.lists(st.integers(-1, 1 << 40), min_size=5, max_size=5),
    epoch=st.integers(-1, LARGEST_EPOCH),
    protocol=st.sampled_from([0, 2]),
    name=st.text(max_size=20),
)
def test_records_come_back(
    *,
    state: TxnState,
    partitions: frozenset[TopicPartition],
    numbers: list[int],
    epoch: int,
    protocol: int,
    name: str,
) -> None:
    given_one = Transaction(
        name,
        numbers[0],
        epoch,
        60_000,
        state,
        numbers[1],
        frozenset() if state is TxnState.EMPTY else partitions,
        numbers[2],
        numbers[3],
        numbers[4],
        protocol=protocol,
    )
    assert decode_key(encode_key(name)) == name
    assert decode_value(name, encode_value(given_one, 1)) == given_one
    plain = decode_value(name, encode_value(given_one, 0))
    assert (plain.identity, plain.state, plain.partitions) == (
        given_one.identity,
        state,
        given_one.partitions,
    )


CALLS = st.lists(
    st.tuples(
        st.sampled_from(["init", "add", "commit", "abort", "complete", "tick", "move"]),
        st.integers(0, 3),
        st.booleans(),
    ),
    max_size=40,
)


@given(calls=CALLS, protocol=st.sampled_from([0, 2]))
def test_a_decision_survives_a_change_of_the_coordinator(
    calls: list[tuple[str, int, bool]], protocol: int
) -> None:
    """Producers come and go, records are not written, and coordinators change."""
    script = Script()
    known: list[ProducerIdAndEpoch] = [NO_IDENTITY]
    log: list[Transaction] = []
    for call, place, is_written in calls:
        who = known[-1 - place % len(known)]
        write = _decide(script, call, who, protocol)
        if call == "move":
            # Another coordinator knows what is in the log, and nothing else.
            script.machine = TransactionMachine(MachineSettings())
            for record in log[-1:]:
                script.machine.replay(ID, record)
        if write is None:
            continue
        script.machine.set_pending(write)
        if not is_written:
            script.machine.forget_pending(ID)
            continue
        log.append(decode_value(ID, encode_value(write, 1)))
        script.machine.replay(ID, log[-1])
        known.append(log[-1].identity)
    for before, after in pairwise(log):
        if before.state in PREPARED:
            name = before.state.name.removeprefix("PREPARE")
            assert after.state.name == f"COMPLETE{name}", "a decision is only completed"
        assert (after.producer_id, after.epoch) >= (before.producer_id, before.epoch)


def _decide(
    script: Script, call: str, who: ProducerIdAndEpoch, protocol: int
) -> Transaction | None:
    machine, now_ms = script.machine, script.now_ms
    script.now_ms += 10
    if call == "init":
        script.next_id += 1
        return machine.init(
            now_ms, ID, 60_000, expected=None, protocol=protocol, new_producer_id=script.next_id
        ).write
    if call == "add":
        return machine.add_partitions(now_ms, ID, who, [TP], protocol=protocol).write
    if call in {"commit", "abort"}:
        script.next_id += 1
        return machine.end(
            now_ms,
            ID,
            who,
            is_commit=call == "commit",
            protocol=protocol,
            new_producer_id=script.next_id,
        ).write
    if call == "complete":
        return machine.complete(now_ms, ID)
    if call == "tick":
        script.now_ms += 60_000
        due = machine.tick(script.now_ms)
        return next((one for one in due if isinstance(one, Transaction)), None)
    return None
