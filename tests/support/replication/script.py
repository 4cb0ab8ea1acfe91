"""A tiny language for scenes with replicas, and their transcripts.

`golden_script` explains what a script is. Commands, with broker ids as numbers:

    cluster N [min=M] [lag=MS]    N brokers with one partition; 1 leads
    produce B V... [acks=1]       a producer sends records to B, with acks=all by default
    fetch B... [from=L]           each fetches once from its leader, or from L
    sync B...                     they fetch one after the other until nothing changes
    send B                        a fetch leaves B; `answer B` lets it arrive and come back
    controller [refuse=CODE]      the controller answers what it was asked, in order
    controller lose               it does, and its answers are lost
    lose                          all messages in flight are lost
    checkpoint B                  B checkpoints its high watermark
    kill B, start B               a process dies; a new one registers, still fenced
    fence B, unfence B, lead B    actions of the controller
    learn B...                    brokers apply all changes of the metadata
    wait MS                       time passes
    delete B OFFSET               records below an offset are deleted on the leader B
    read B OFFSET, latest B       a consumer reads, or asks for the end
    state                         everybody's log, and what the controller knows
"""

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.replication.leader import ALL_ACKS
from shoal.lite.replication.messages import IsrAnswer, ReplicationSettings
from support.replication.world import (
    AlterAnswered,
    AlterSent,
    FetchAnswered,
    FetchSent,
    World,
    describe_answer,
)


class Scene:
    """A world that follows commands."""

    def __init__(self) -> None:
        self._output: list[str] = []
        self._world: World | None = None

    @property
    def world(self) -> World:
        assert self._world, "a script begins with `cluster`"
        return self._world

    def play(self, command: str) -> list[str]:
        """Run a command; return what happened."""
        name, *words = command.split()
        options = dict(word.split("=") for word in words if "=" in word)
        plain = [word for word in words if "=" not in word]
        getattr(self, f"_do_{name}")(plain, options)
        output, self._output = self._output, []
        return output

    def _tell(self, line: str) -> None:
        self._output.append(line)

    # Commands

    def _do_cluster(self, words: list[str], options: dict[str, str]) -> None:
        settings = ReplicationSettings(
            min_insync_replicas=int(options.get("min", "1")),
            replica_lag_time_max_ms=int(options.get("lag", "10000")),
        )
        self._world = World(int(words[0]), settings, tell=self._tell)
        self._do_learn(list(map(str, self.world.brokers)), {})

    def _do_produce(self, words: list[str], options: dict[str, str]) -> None:
        acks = int(options.get("acks", ALL_ACKS))
        for value in words[1:]:
            code = self.world.produce(int(words[0]), value, acks=acks)
            if code != Code.NONE:
                self._tell(f"{words[0]} refuses {value} with {code.name}")

    def _do_fetch(self, words: list[str], options: dict[str, str]) -> None:
        leader = int(options["from"]) if "from" in options else None
        for word in words:
            self._exchange(int(word), leader)

    def _do_sync(self, words: list[str], _: dict[str, str]) -> None:
        before = None
        while before != (before := self._positions()):
            for word in words:
                self._exchange(int(word), quiet=True)

    def _positions(self) -> list[tuple[int, ...]]:
        return [
            (
                broker.log.end_offset,
                broker.log.epochs.latest,
                broker.replica.role.high_watermark,
            )
            for broker in self.world.brokers.values()
            if broker.replica
        ]

    def _exchange(self, broker_id: int, leader: int | None = None, *, quiet: bool = False) -> None:
        sent = self.world.send_fetch(broker_id, leader=leader)
        if sent is None:
            self._tell(f"{broker_id} does not fetch")
        else:
            self._carry(sent, quiet=quiet)

    def _carry(self, sent: FetchSent, *, quiet: bool = False) -> None:
        fetch = sent.fetch
        if not quiet:
            self._tell(
                f"{sent.source} fetches from {sent.target} at {fetch.offset}, epoch "
                f"{fetch.leader_epoch}, last fetched {fetch.last_fetched_epoch}"
            )
        if self.world.brokers[sent.target].replica is None:
            self.world.network.remove(sent)
            self._tell(f"{sent.target} is dead")
            return
        self.world.deliver(sent, max_records=100)
        answered = self.world.network[-1]
        assert isinstance(answered, FetchAnswered)
        answer = answered.answer
        if answer.code != Code.NONE:
            self._tell(f"{sent.target} answers {answer.code.name}")
        elif answer.diverging:
            epoch, end_offset = answer.diverging
            self._tell(f"{sent.target} answers that epoch {epoch} ends at {end_offset}")
        elif not quiet:
            self._tell(f"{sent.target} answers high watermark {answer.high_watermark}")
        self.world.deliver(answered)

    def _do_send(self, words: list[str], _: dict[str, str]) -> None:
        sent = self.world.send_fetch(int(words[0]))
        assert sent
        self._tell(f"{sent.source} fetches from {sent.target} at {sent.fetch.offset}")

    def _do_answer(self, words: list[str], _: dict[str, str]) -> None:
        for message in list(self.world.network):
            if isinstance(message, FetchSent) and message.source == int(words[0]):
                self._carry(message)

    def _do_controller(self, words: list[str], options: dict[str, str]) -> None:
        for message in list(self.world.network):
            if isinstance(message, AlterSent) and "refuse" in options:
                self.world.network.remove(message)
                answer = IsrAnswer(Code[options["refuse"]])
                self._tell(f"controller answers {message.source}: {describe_answer(answer)}")
                self.world.network.append(AlterAnswered.to(message, answer))
            elif isinstance(message, AlterSent):
                self.world.deliver(message)
        for message in list(self.world.network):
            if isinstance(message, AlterAnswered) and "lose" not in words:
                self.world.deliver(message)
        if "lose" in words:
            self._do_lose()

    def _do_lose(self, *_: object) -> None:
        self._tell(f"{len(self.world.network)} message(s) lost")
        self.world.network.clear()

    def _do_checkpoint(self, words: list[str], _: dict[str, str]) -> None:
        self.world.checkpoint(int(words[0]))

    def _do_kill(self, words: list[str], _: dict[str, str]) -> None:
        self.world.kill(int(words[0]))

    def _do_start(self, words: list[str], _: dict[str, str]) -> None:
        self.world.start(int(words[0]))

    def _do_fence(self, words: list[str], _: dict[str, str]) -> None:
        self.world.controller.fence(int(words[0]))

    def _do_unfence(self, words: list[str], _: dict[str, str]) -> None:
        self.world.controller.unfence(int(words[0]))

    def _do_lead(self, words: list[str], _: dict[str, str]) -> None:
        self.world.controller.move_leader(int(words[0]))

    def _do_learn(self, words: list[str], _: dict[str, str]) -> None:
        for word in words:
            while self.world.learn(int(word)):
                pass

    def _do_wait(self, words: list[str], _: dict[str, str]) -> None:
        self.world.pass_time(int(words[0]))

    def _do_delete(self, words: list[str], _: dict[str, str]) -> None:
        partition = self.world.brokers[int(words[0])].partition
        assert partition
        assert int(words[1]) <= partition.leader.high_watermark
        partition.delete_before(int(words[1]), lambda _: None)
        self._tell(f"{words[0]} starts its log at {words[1]}")

    def _do_read(self, words: list[str], _: dict[str, str]) -> None:
        try:
            entries = self.world.read(int(words[0]), int(words[1]))
            self._tell(f"reads {' '.join(entry.value for entry in entries) or 'nothing'}")
        except ApiError as error:
            self._tell(f"{words[0]} answers {error.code.name}")

    def _do_latest(self, words: list[str], _: dict[str, str]) -> None:
        leader = self.world.brokers[int(words[0])].leader
        assert leader
        try:
            self._tell(f"the end is {leader.latest_offset()}")
        except ApiError as error:
            self._tell(f"{words[0]} answers {error.code.name}")

    def _do_state(self, *_: object) -> None:
        controller = self.world.controller
        now = controller.assignment
        eligible = f", ELR {','.join(map(str, sorted(controller.elr)))}" if controller.elr else ""
        self._tell(
            f"controller: leader {now.leader}, epoch {now.leader_epoch}, "
            f"ISR {','.join(map(str, now.isr)) or 'nobody'}{eligible}"
        )
        for broker in self.world.brokers.values():
            log = broker.log
            records = " ".join(f"{entry.value}@{entry.epoch}" for entry in log.entries)
            start = f" from {log.start_offset}" if log.start_offset else ""
            if broker.replica is None:
                self._tell(f"{broker.broker_id} is dead: [{records}]{start}")
                continue
            role = broker.replica.role
            verb = "leads" if broker.leader else "follows"
            self._tell(
                f"{broker.broker_id} {verb} in {role.leader_epoch}: [{records}]{start} "
                f"high watermark {role.high_watermark}"
            )
