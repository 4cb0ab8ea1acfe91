"""A tiny language for scenes with a controller, and their transcripts.

`golden_script` tells what a script is. Commands, with broker ids as numbers and partitions as t-0:

    cluster N [min=M] [unclean=true] [racks=a,a,b]   N brokers, started one after the other
    topic NAME PARTITIONS FACTOR [setting=value]     a topic
    kill B...                  processes die together, seen at once by whoever started them
    pause B..., resume B...    processes are silent, and are heard again
    start B... [boot=NAME]     new processes of brokers register, catch up and beat
    register B [boot=NAME]     the same, but the process has not caught up
    stop B...                  processes end by themselves
    empty B                    the folder of a broker is lost
    expand T B..., shrink T B...    the leader proposes an in-sync set with B, or without
    propose T B... [leader=L] [late=leader|partition] [stale=B]
                               the same, by any L, with old epochs, or with an old epoch of B
    cut T B...                 a fault hook takes B out of the in-sync set
    move T B                   a leader is moved
    elect preferred|unclean [T]
    reassign T B..., call_off T
    config TOPIC name=value    a setting; `config *` is for all brokers
    fail B T...                the logs of a broker fail
    lose B T...                a broker that was registered found its logs cut
    report B T EPOCH END       a replica tells how far its log goes
    controller                 another controller takes over
    wait MS                    time passes
    state                      all brokers and partitions
"""

from collections.abc import Callable
from uuid import UUID

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.metadata.data import requests
from shoal.lite.metadata.data.records import (
    NO_LEADER,
    BrokerRecord,
    BrokerRemovedRecord,
    ConfigRecord,
    PartitionRecord,
    Record,
    TopicRecord,
)
from shoal.lite.metadata.data.state import ALL_BROKERS, BROKER, TOPIC
from shoal.lite.metadata.data.status import why_offline
from shoal.model.topics import TopicPartition
from support.controller.cluster import FIRST_BOOT, ControllerCluster

_BEHIND = {"": (0, 0), "partition": (0, 1), "leader": (1, 1)}
Options = dict[str, str]


class Scene:
    """A cluster that obeys commands."""

    def __init__(self) -> None:
        self._told: list[str] = []
        self._cluster: ControllerCluster | None = None
        self._each: dict[str, Callable[[int], None]] = {
            "pause": self._pause,
            "resume": self._resume,
            "stop": self._stop,
            "empty": self._empty,
        }

    @property
    def cluster(self) -> ControllerCluster:
        assert self._cluster, "a script begins with `cluster`"
        return self._cluster

    def play(self, command: str) -> list[str]:
        """Do it; returns what happened."""
        name, *words = command.split()
        options = dict(word.split("=") for word in words if "=" in word)
        plain = [word for word in words if "=" not in word]
        try:
            if name in self._each:
                for word in plain:
                    self._each[name](int(word))
            else:
                getattr(self, f"_do_{name}")(plain, options)
        except ApiError as refused:
            self._told.append(f"refused with {refused.code.name}: {refused}")
        told, self._told = self._told, []
        return told

    # The cluster and its brokers

    def _do_cluster(self, words: list[str], options: Options) -> None:
        properties = {
            "min.insync.replicas": options.get("min", "1"),
            "unclean.leader.election.enable": options.get("unclean", "false"),
        }
        racks = dict(enumerate(options["racks"].split(","), 1)) if "racks" in options else {}
        self._cluster = ControllerCluster(
            int(words[0]), properties=properties, racks=racks, tell=self._on_record
        )

    def _do_start(self, words: list[str], options: Options) -> None:
        for word in words:
            self.cluster.start(int(word), options.get("boot", FIRST_BOOT))

    def _do_kill(self, words: list[str], _: Options) -> None:
        self.cluster.kill(*map(int, words))

    def _do_register(self, words: list[str], options: Options) -> None:
        self.cluster.register(int(words[0]), options.get("boot", FIRST_BOOT)).is_heard = False

    def _pause(self, broker_id: int) -> None:
        self.cluster.processes[broker_id].is_heard = False

    def _resume(self, broker_id: int) -> None:
        self.cluster.processes[broker_id].is_heard = True
        self.cluster.beat(broker_id)

    def _stop(self, broker_id: int) -> None:
        self.cluster.stop(broker_id)

    def _empty(self, broker_id: int) -> None:
        del self.cluster.folders[broker_id]

    def _do_controller(self, _: list[str], __: Options) -> None:
        self.cluster.fail_over()

    def _do_wait(self, words: list[str], _: Options) -> None:
        self.cluster.wait(int(words[0]))

    # Topics and partitions

    def _do_topic(self, words: list[str], options: Options) -> None:
        self.cluster.create(words[0], int(words[1]), int(words[2]), **options)

    def _do_config(self, words: list[str], options: Options) -> None:
        kind, owner = (BROKER, ALL_BROKERS) if words[0] == "*" else (TOPIC, words[0])
        changes = [
            requests.ConfigEdit(name, requests.SET, value) for name, value in options.items()
        ]
        self.cluster.ask(requests.AlterConfigs(kind, owner, changes))

    def _do_expand(self, words: list[str], options: Options) -> None:
        present = map(str, self.cluster.partition(*_partition(words[0])).in_sync)
        self._do_propose([words[0], *present, *words[1:]], options)

    def _do_shrink(self, words: list[str], options: Options) -> None:
        present = map(str, self.cluster.partition(*_partition(words[0])).in_sync)
        self._do_propose([words[0], *(word for word in present if word not in words[1:])], options)

    def _do_propose(self, words: list[str], options: Options) -> None:
        state = self.cluster.state
        stale = [int(options["stale"])] if "stale" in options else []
        answer = self.cluster.propose(
            tuple(map(int, words[1:])),
            _partition(words[0]),
            broker_id=int(options["leader"]) if "leader" in options else None,
            behind=_BEHIND[options.get("late", "")],
            epochs={broker: state.brokers[broker].epoch - 1 for broker in stale},
        )
        if answer.code is not Code.NONE:
            self._told.append(f"answered with {answer.code.name}")

    def _do_cut(self, words: list[str], _: Options) -> None:
        broker_ids = tuple(map(int, words[1:]))
        self.cluster.ask(requests.ShrinkInSync(_partition(words[0]), broker_ids))

    def _do_move(self, words: list[str], _: Options) -> None:
        self.cluster.ask(requests.MoveLeader(_partition(words[0]), int(words[1])))

    def _do_elect(self, words: list[str], _: Options) -> None:
        election = requests.Election[words[0].upper()]
        named = [_partition(word) for word in words[1:]] or None
        self._tell_refusals(self.cluster.ask(requests.ElectLeaders(election, named)))

    def _do_reassign(self, words: list[str], _: Options) -> None:
        target = tuple(map(int, words[1:]))
        self._tell_refusals(self.cluster.ask(requests.Reassign({_partition(words[0]): target})))

    def _do_call_off(self, words: list[str], _: Options) -> None:
        self._tell_refusals(self.cluster.ask(requests.Reassign({_partition(words[0]): None})))

    def _tell_refusals(self, answers: list[requests.PartitionResult]) -> None:
        for answer in answers:
            if answer.code is not Code.NONE:
                self._told.append(f"{answer.partition}: {answer.code.name}: {answer.message}")

    def _do_fail(self, words: list[str], _: Options) -> None:
        self.cluster.ask(requests.ReportFailures(*self._parse_report(words)))

    def _do_lose(self, words: list[str], _: Options) -> None:
        self.cluster.ask(requests.ReportLosses(*self._parse_report(words)))

    def _parse_report(self, words: list[str]) -> tuple[int, int, list[tuple[UUID, int]]]:
        """A broker, its epoch, and partitions of which it tells something."""
        broker_id = int(words[0])
        keys = [self.cluster.partition(*_partition(word)).key for word in words[1:]]
        return broker_id, self.cluster.processes[broker_id].epoch, keys

    def _do_report(self, words: list[str], _: Options) -> None:
        broker_id, epoch, end = int(words[0]), int(words[2]), int(words[3])
        record = self.cluster.partition(*_partition(words[1]))
        log_end = requests.LogEnd(*record.key, record.leader_epoch, epoch, end)
        broker_epoch = self.cluster.processes[broker_id].epoch
        self.cluster.ask(requests.ReportLogEnds(broker_id, broker_epoch, [log_end]))

    # Telling

    def _do_state(self, _: list[str], __: Options) -> None:
        for broker in self.cluster.state.brokers.values():
            condition = "shut down" if broker.shutting_down else "fenced"
            condition = condition if broker.fenced else f"leads {self._count_led(broker.broker_id)}"
            self._told.append(f"broker {broker.broker_id}: {condition}")
        for partition in self.cluster.state.partitions():
            reason = why_offline(partition)
            told = self._describe(partition)
            self._told.append(told if reason is None else f"{told}\n  offline: {reason}")

    def _count_led(self, broker_id: int) -> int:
        return self.cluster.state.leader_counts[broker_id]

    def _on_record(self, record: Record) -> None:
        if isinstance(record, BrokerRecord):
            self._told.append(f"broker {record.broker_id} {_condition(record)}")
        elif isinstance(record, BrokerRemovedRecord):
            self._told.append(f"broker {record.broker_id} is removed")
        elif isinstance(record, TopicRecord):
            self._told.append(f"topic {record.name}")
        elif isinstance(record, ConfigRecord):
            owner = record.owner or f"the {record.owner_kind}"
            self._told.append(f"{record.name}={record.value} for {owner}")
        elif isinstance(record, PartitionRecord):
            self._told.append(self._describe(record))

    def _describe(self, record: PartitionRecord) -> str:
        name = self.cluster.observer.topic_names[record.topic_id]
        leader = "no leader" if record.leader == NO_LEADER else f"leader {record.leader}"
        parts = [f"{leader} in epoch {record.leader_epoch}", f"in sync {_ids(record.in_sync)}"]
        parts += [
            f"{word} {_ids(members)}"
            for word, members in (
                ("eligible", record.eligible),
                ("adding", record.adding),
                ("removing", record.removing),
                ("failed", record.failed),
                ("lost", record.lost),
            )
            if members
        ]
        parts += ["recovering"] if record.recovering else []
        return f"{name}-{record.partition} on {_ids(record.replicas)}: {', '.join(parts)}"


def _condition(record: BrokerRecord) -> str:
    if record.shutting_down:
        return "shuts down"
    return f"is {'' if record.fenced else 'not '}fenced"


def _ids(broker_ids: tuple[int, ...]) -> str:
    return " ".join(map(str, broker_ids)) or "nobody"


def _partition(text: str) -> TopicPartition:
    name, _, index = text.rpartition("-")
    return TopicPartition(name, int(index))
