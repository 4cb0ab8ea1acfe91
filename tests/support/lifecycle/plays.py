"""Plays one event at one time, with a mirror for each delivery, and judges its cells.

The course of a play:
1. Topics are filled, and mirrors copy them. What an event needs before comes (`Script.before`).
2. The mirrors go on, or are stopped; the event happens (`Script.happen`); stopped mirrors start.
3. When the outcome stands for longer than a refresh it is judged by both judges.
4. More records are sent, the mirrors are stopped and started, and it is judged again: a good
   outcome must outlive a restart.

Each delivery has a mirror of its own, which copies one topic that it is given by name, one that
a pattern matches, and a healthy one.
"""

import os
import subprocess
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaException

from shoal.model.errors import ShoalError
from support.lifecycle.cells import (
    EVENTS,
    GOOD,
    Cell,
    Delivery,
    Match,
    Outcome,
    PlayKey,
    When,
    list_allowed_outcomes,
)
from support.lifecycle.judging import Fate, Observed, Said, Seen, Verdict, judge, worst
from support.lifecycle.mirrors import MirrorProcess, what_is_said
from support.lifecycle.play_parts import (
    HEALTHY_BROKER,
    REFRESH_S,
    SLOW_REFRESH_S,
    Layout,
    Team,
    Tracked,
    Victim,
)
from support.lifecycle.reading import Place, Unreadable, read_topics
from support.lifecycle.sides import Side, SideFailed, wait_until
from support.lifecycle.verifying import reconcile, run_verify
from support.lifecycle.worlds import World
from support.lifecycle.wrapped_mirror import HIDE_IDS, QUICK_DEPTH, SKIP

FIRST_RECORDS: Final = 60
LAST_RECORDS: Final = 10
COPY_PATIENCE_S: Final = 180.0
# Transactions that a dead partition holds back are left for others within 30 s.
HEALTHY_PATIENCE_S: Final = 45.0
_POLL_S: Final = 0.3
# They end a play, never a run.
_PLAY_ERRORS: Final = (
    SideFailed,
    Unreadable,
    KafkaException,
    ShoalError,  # a broker that does not start, for example
    subprocess.TimeoutExpired,
    RuntimeError,
)

Found = dict[Place, list[Seen]]
Both = tuple[Found, Found]  # source and target


@dataclass(frozen=True)
class Script:
    """How an event is made."""

    happen: Callable[["Play"], None]
    layout: Layout = field(default_factory=Layout)
    before: Callable[["Play"], None] | None = None  # while all mirrors run


@dataclass
class Result:
    """The verdict of a cell."""

    cell: Cell
    verdict: Verdict
    is_good: bool
    seconds: float = 0.0
    # Changes of depth that its mirror showed; those of a mirror are at the first of its cells.
    switches: int = 0


class Play:
    """One event at one time."""

    def __init__(
        self,
        world: World,
        key: PlayKey,
        cells: Iterable[Cell],
        script: Script,
        *,
        sabotages: bool = False,
        patience: float = 1.0,
    ) -> None:
        """`patience` stretches how long a good outcome is waited for, on a busy machine."""
        self.world = world
        self._patience = patience
        self.when = key.when
        self.event = EVENTS[key.event]
        self.script = script
        self.layout = script.layout
        self.number = world.next_number()
        self.folder = world.folder / f"play-{self.number}"
        self.folder.mkdir()
        self.source, self.target = self._sides()
        self._hidden = self.folder / "hidden-ports"
        self._sabotages = sabotages
        self.teams = self._make_teams(list(cells))
        self._are_stopped = False
        self._has_announced = False
        self._held_back: dict[str, str] = {}  # by healthy topic
        self._quiet_while_away = ""
        self._last_found: Both = ({}, {})

    # Parts

    def _sides(self) -> tuple[Side, Side]:
        source, target = self.world.source, self.world.target
        if self.layout.lone:
            lone = Side(self.world.make_lone(self.lone_name))
            return (lone, target) if self.layout.lone == "source" else (source, lone)
        return source, target

    @property
    def lone_name(self) -> str:
        return f"lone-{self.number}"

    @property
    def refresh_s(self) -> float:
        return SLOW_REFRESH_S if self.when is When.BETWEEN else REFRESH_S

    def _make_teams(self, cells: list[Cell]) -> list[Team]:
        teams = []
        for delivery in dict.fromkeys(cell.delivery for cell in cells):
            prefix = f"m{self.number}-{delivery}"
            victims, topics = [], []
            for cell in cells:
                if cell.delivery is not delivery:
                    continue
                kind = "n" if cell.match is Match.NAME else "p"
                victims.append(Victim(f"{prefix}-{kind}", cell=cell))
                is_named = cell.match is Match.NAME
                topics.append(f"{prefix}-n" if is_named else f"{prefix}-[p].*")
            healthy = Tracked(f"{prefix}-healthy")
            mirror = self._make_mirror(prefix, [*topics, healthy.topic], delivery)
            teams.append(Team(delivery, mirror, victims, healthy))
        return teams

    def _make_mirror(self, prefix: str, topics: list[str], delivery: Delivery) -> MirrorProcess:
        options = ["--delivery", delivery, "--sync-topic-configs-interval-seconds", "1"]
        options += ["--refresh-topics-interval-seconds", str(self.refresh_s)]
        environment = {QUICK_DEPTH: "1"}
        if self.layout.hides_ids:
            environment[HIDE_IDS] = str(self._hidden)
        if self._sabotages:
            environment[SKIP] = f"{prefix}-p"
        return MirrorProcess(
            name=f"life-{os.getpid()}-{self.world.folder.name}-{prefix}",
            topics=topics,
            options=[*options, *self.layout.options],
            log=self.folder / f"{delivery}.log",
            module="support.lifecycle.wrapped_mirror",
            environment=environment,
        )

    @property
    def victims(self) -> list[Victim]:
        return [victim for team in self.teams for victim in team.victims]

    @property
    def topics(self) -> list[str]:
        return [victim.topic for victim in self.victims]

    @property
    def healthy(self) -> list[Tracked]:
        return [team.healthy for team in self.teams]

    # The course

    def run(self) -> list[Result]:
        began = time.monotonic()
        try:
            verdicts = self._play()
        except _PLAY_ERRORS as error:
            verdicts = {v.topic: Verdict(Outcome.WRONG, f"{error}") for v in self.victims}
        finally:
            self._clean_up()
        seconds = time.monotonic() - began
        return [self._result(victim, verdicts[victim.topic], seconds) for victim in self.victims]

    def _result(self, victim: Victim, verdict: Verdict, seconds: float) -> Result:
        if victim.cell is None:
            raise AssertionError("a victim belongs to a cell")
        is_good = verdict.outcome in list_allowed_outcomes(victim.cell)
        firsts = {team.victims[0].topic: team.mirror.depth_switches for team in self.teams}
        return Result(victim.cell, verdict, is_good, seconds, firsts.get(victim.topic, 0))

    def _play(self) -> dict[str, Verdict]:
        self._prepare()
        self._start_all()
        self.await_copied()
        if self.script.before is not None:
            self.script.before(self)
        if self.when is When.STOPPED:
            self._stop_all()
            self._are_stopped = True
        self.script.happen(self)
        self.resume_mirrors()
        first = self._settle()
        if any(verdict.outcome not in GOOD for verdict in first.values()):
            return first
        return self._restart_and_settle(first)

    def _restart_and_settle(self, first: dict[str, Verdict]) -> dict[str, Verdict]:
        self._has_announced = True
        self.send("z", LAST_RECORDS, only_existing=True)
        self._stop_all()
        self._start_all()
        second = self._settle()
        for topic, verdict in second.items():
            if verdict.outcome not in GOOD:
                detail = f"first {first[topic].outcome}; after a restart: {verdict.detail}"
                second[topic] = Verdict(verdict.outcome, detail)
        # What was announced before the restart is the outcome of the play.
        return {
            topic: first[topic] if verdict.outcome in GOOD else verdict
            for topic, verdict in second.items()
        }

    def _prepare(self) -> None:
        layout = self.layout
        self.source.sends = self.target.sends = 0
        self.create(self.source, self.topics, layout.replicas, dict(layout.configs))
        names = [tracked.topic for tracked in self.healthy]
        self.create(self.source, names, (HEALTHY_BROKER,), {})
        if layout.target_replicas is not None:
            configs = dict(layout.target_configs)
            self.create(self.target, self.topics, layout.target_replicas, configs)
            self.create(self.target, names, (HEALTHY_BROKER,), {})
        if layout.checkpoint_replicas is not None:
            compact = {"cleanup.policy": "compact"}
            topics = [team.checkpoint_topic for team in self.teams]
            self.create(self.target, topics, layout.checkpoint_replicas, compact)
        if layout.hides_ids:
            side = self.source if layout.hides_ids == "source" else self.target
            ports = [str(node.port) for node in side.cluster.nodes()]
            self._hidden.write_text(" ".join(ports))
        self.send("a", FIRST_RECORDS)

    def create(
        self, side: Side, topics: list[str], replicas: tuple[int, ...], configs: dict[str, str]
    ) -> None:
        is_lone = len(side.cluster.nodes()) == 1
        side.create(topics, replicas=None if is_lone else replicas, configs=configs)

    # What scripts use

    def send(self, generation: str, count: int, *, only_existing: bool = False, **how: Any) -> None:
        """So many records to each partition of each topic, the healthy ones too."""
        wanted: list[Tracked] = [*self.victims, *self.healthy]
        if only_existing:
            there = self.source.topics()
            wanted = [tracked for tracked in wanted if tracked.topic in there]
        self.send_to(wanted, generation, count, **how)

    def send_to(self, wanted: Iterable[Tracked], generation: str, count: int, **how: Any) -> None:
        records = [r for tracked in wanted for r in tracked.next_records(generation, count)]
        self.source.send(records, **how)

    def step(self) -> None:
        """Let running mirrors see the last step by a refresh."""
        if self.when is When.RUNNING:
            time.sleep(self.refresh_s * 3)

    def pause(self) -> None:
        """Let mirrors that run fetch nothing more."""
        if not self._are_stopped:
            self._give_all("pause")
            time.sleep(1.5)  # a fetch that is under way still brings what comes meanwhile

    def resume(self) -> None:
        if not self._are_stopped:
            self._give_all("resume")

    def _give_all(self, command: str) -> None:
        for team in self.teams:
            if team.mirror.give(command) is None:
                raise SideFailed(f"{team.mirror.name} does not obey {command}")

    def resume_mirrors(self) -> None:
        """Start mirrors that the play has stopped."""
        if self._are_stopped:
            self.start_mirrors()

    def start_mirrors(self) -> None:
        """Start mirrors that a script has stopped."""
        self._are_stopped = False
        self._start_all()

    def restart_mirrors(self) -> None:
        """With the addresses that clusters have now; those that do not end are killed."""
        if not self._are_stopped:
            for team in self.teams:
                with suppress(subprocess.TimeoutExpired):
                    team.mirror.stop()
            self._start_all()

    def show_ids(self) -> None:
        """Let topic ids appear for connections that are made from now on."""
        self._hidden.unlink()

    def mark_absent(self, fate: Fate, generations: str) -> None:
        """This became of records of these generations which the source no longer has."""
        found = read_topics(self.source.bootstrap, self.topics)
        for victim in self.victims:
            for number, sent in victim.sent.items():
                there = {seen.identity for seen in found.get((victim.topic, number), [])}
                gone = [x for x in sent if x not in there and x[0] in generations]
                victim.mark(fate, gone, number)

    def await_copied(self) -> None:
        """Until mirrors say that they have everything."""
        wait_until(self._are_all_copied, "all is copied", COPY_PATIENCE_S)

    def _are_all_copied(self) -> bool:
        for team in self.teams:
            if (code := team.mirror.exit_code) is not None:
                said = " ".join(team.mirror.last_error())
                raise SideFailed(f"the mirror of {team.delivery} ended with {code}: {said}")
            body = team.mirror.give("status")
            tracked: list[Tracked] = [*team.victims, team.healthy]
            for each in tracked:
                for number, sent in each.sent.items():
                    said_lag = what_is_said(body, each.topic, number).lag
                    if said_lag != 0 or not sent:
                        return False
        return True

    def expect_healthy(self) -> None:
        """Healthy topics must be copied while something is wrong with others."""
        patience_s = HEALTHY_PATIENCE_S * self._patience
        try:
            wait_until(lambda: not self._behind(), "healthy topics are copied", patience_s)
        except SideFailed:
            self._held_back = self._behind()

    def expect_not_green(self) -> None:
        """A cluster is out of reach: the status must not look as if all was well."""
        for team in self.teams:
            body = team.mirror.give("status")
            if body is None or team.mirror.exit_code is not None:
                continue
            said = [what_is_said(body, victim.topic, 0) for victim in team.victims]
            if all(each.lag == 0 and not each.is_loud for each in said):
                self._quiet_while_away = "the status is green while a cluster is out of reach"

    def _behind(self) -> dict[str, str]:
        """Healthy topics that are not copied, and what they lack."""
        names = [tracked.topic for tracked in self.healthy]
        try:
            found = read_topics(self.target.bootstrap, names, patience_s=5.0)
        except Unreadable as error:
            return dict.fromkeys(names, str(error))
        behind = {}
        for tracked in self.healthy:
            there = {seen.identity for seen in found.get((tracked.topic, 0), [])}
            missing = [x for x in tracked.sent[0] if x not in there]
            if missing:
                behind[tracked.topic] = f"it lacks {len(missing)} while the event lasts"
        return behind

    # Mirrors

    def _start_all(self) -> None:
        for team in self.teams:
            team.mirror.start(self.source.bootstrap, self.target.bootstrap)

    def _stop_all(self) -> None:
        for team in self.teams:
            team.mirror.stop()

    # Judging

    def _settle(self) -> dict[str, Verdict]:
        """The verdicts, once they are good and stay so, or when patience is over."""
        self._await_answers()
        patience_s = self.layout.patience_s * self._patience
        deadline = time.monotonic() + patience_s + 2 * self.refresh_s
        pause_s = max(1.0, 1.5 * self.refresh_s)
        while True:
            time.sleep(_POLL_S)
            is_late = time.monotonic() > deadline
            verdicts = self._judge_all(is_final=is_late)
            if is_late:
                return self._ask_verify(verdicts)
            if self._are_allowed(verdicts):
                time.sleep(pause_s)
                again = self._judge_all(is_final=False)
                if self._are_allowed(again):
                    agreed = self._ask_verify(again)
                    if self._are_allowed(agreed):
                        return agreed

    def _await_answers(self) -> None:
        """Until each mirror has a status or has ended: patience does not count before."""

        def is_up(team: Team) -> bool:
            return team.mirror.exit_code is not None or team.mirror.give("status") is not None

        with suppress(SideFailed):
            wait_until(lambda: all(map(is_up, self.teams)), "mirrors answer", COPY_PATIENCE_S)

    def _are_allowed(self, verdicts: dict[str, Verdict]) -> bool:
        return bool(verdicts) and all(
            victim.cell is not None
            and verdicts[victim.topic].outcome in list_allowed_outcomes(victim.cell)
            for victim in self.victims
        )

    def _judge_all(self, *, is_final: bool) -> dict[str, Verdict]:
        """By topic; nothing if the clusters cannot be read yet."""
        try:
            source = read_topics(self.source.bootstrap, self.topics, patience_s=10.0)
            names = [*self.topics, *(tracked.topic for tracked in self.healthy)]
            target = read_topics(self.target.bootstrap, names, patience_s=10.0)
        except Unreadable:
            if is_final:
                raise
            return {}
        verdicts = {}
        for team in self.teams:
            body = team.mirror.give("status")
            for victim in team.victims:
                verdicts[victim.topic] = self._judge_topic(team, victim, body, (source, target))
            held_back = self._held_back.get(team.healthy.topic) or self._judge_healthy(
                team, body, (source, target)
            )
            if held_back:
                for victim in team.victims:
                    verdicts[victim.topic] = Verdict(Outcome.HELD_BACK, held_back)
        self._last_found = (source, target)
        return verdicts

    def _judge_topic(
        self,
        team: Team,
        victim: Victim,
        body: dict[str, Any] | None,
        found: Both,
    ) -> Verdict:
        if self._quiet_while_away:
            return Verdict(Outcome.SILENT, self._quiet_while_away)
        source, target = found
        verdicts = []
        for number in range(victim.partitions):
            place = (victim.topic, number)
            observed = Observed(source.get(place), target.get(place), victim.fates.get(number, {}))
            said = self._said(team, victim.topic, number, body)
            verdicts.append(
                judge(
                    observed,
                    said,
                    team.delivery,
                    checks_times=self.layout.checks_times,
                    was_announced=self._has_announced,
                )
            )
        return worst(verdicts)

    def _said(self, team: Team, topic: str, number: int, body: dict[str, Any] | None) -> Said:
        if team.mirror.exit_code:
            text, remedy = team.mirror.last_error()
            return Said(refused=text, remedy=remedy)
        return what_is_said(body, topic, number)

    def _judge_healthy(self, team: Team, body: dict[str, Any] | None, found: Both) -> str:
        """What is wrong with the healthy topic; one that all concerns may be loud as well."""
        healthy = team.healthy
        sent = [Seen(identity, -1) for identity in healthy.sent[0]]
        there = [Seen(seen.identity, -1) for seen in found[1].get((healthy.topic, 0), [])]
        said = self._said(team, healthy.topic, 0, body) if self.event.concerns_all else Said(lag=0)
        verdict = judge(Observed(sent, there, healthy.fates.get(0, {})), said, team.delivery)
        is_loud = self.event.concerns_all and verdict.outcome in self.event.allowed
        if verdict.outcome is Outcome.COPIED or is_loud:
            return ""
        return f"the healthy topic is {verdict.outcome}: {verdict.detail}"

    def _ask_verify(self, verdicts: dict[str, Verdict]) -> dict[str, Verdict]:
        """The verdicts, as far as the first judge agrees."""
        source, target = self._last_found
        both = [name for name in verdicts if (name, 0) in source and (name, 0) in target]
        try:
            compared = run_verify(self.source.bootstrap, self.target.bootstrap, both)
        except RuntimeError as error:
            return {name: Verdict(Outcome.WRONG, str(error)) for name in verdicts}
        repeats = {name for (name, _), seen in target.items() if len(set(seen)) < len(seen)}
        return {
            name: reconcile(verdict, compared.get(name), has_repeats=name in repeats)
            for name, verdict in verdicts.items()
        }

    def _clean_up(self) -> None:
        """Leave the clusters as they were."""
        for team in self.teams:
            team.mirror.kill()
        if self.layout.lone:
            lone = self.source if self.layout.lone == "source" else self.target
            lone.cluster.stop()
        mirrored = [*self.topics, *(tracked.topic for tracked in self.healthy)]
        checkpoints = [team.checkpoint_topic for team in self.teams]
        for side in (self.world.source, self.world.target):
            side.heal()
            with suppress(SideFailed):
                side.delete([*mirrored, *checkpoints])


def make_folder(parent: Path, number: int) -> Path:
    """The folder of one world."""
    folder = parent / f"world-{number}"
    folder.mkdir(parents=True)
    return folder
