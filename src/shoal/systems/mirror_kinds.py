"""The mirrors that can be put under test: ours, both of Apache Kafka's, and anybody else's.

Rules:
- Each is started by the command line that its users type, with files in the run's folder.
- Apache Kafka's mirrors get what the size of the clusters dictates and nothing else; the user's
  properties win.
- A foreign mirror runs already, or is started and stopped by commands of the user's, which find
  `SHOAL_SOURCE`, `SHOAL_TARGET` and `SHOAL_TOPICS` in their environment. A start command that
  ends with code 0 has left its mirror running in the background.
"""

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import javaproperties

from shoal.model.errors import SystemFailure
from shoal.runtime.java import find_java
from shoal.systems.apache.files import class_path, logging_options
from shoal.systems.apache.ivy import Report
from shoal.systems.apache.jars import MM1_KAFKA, NEWEST_KAFKA, fetch_jars, fetch_mirror_jars
from shoal.systems.mirrors import Mirror, ProcessMirror
from shoal.systems.processes.meters import Usage

# In the run's folder: which batches our mirror packed anew.
RE_ENCODED_FILE: Final = "mirror-re-encoded.jsonl"
_COMMAND_TIMEOUT_S: Final = 120.0
_SERVERS: Final = "bootstrap.servers"
_HEAP: Final = ("-Xms64m", "-Xmx2g", "-XX:+UseG1GC", "-XX:-UsePerfData")
_IDENTITY: Final = "org.apache.kafka.connect.mirror.IdentityReplicationPolicy"
_MM2_COPIES: Final = (
    "replication.factor",
    "checkpoints.topic.replication.factor",
    "heartbeats.topic.replication.factor",
    "offset-syncs.topic.replication.factor",
    "offset.storage.replication.factor",
    "status.storage.replication.factor",
    "config.storage.replication.factor",
)


@dataclass(frozen=True, slots=True)
class Route:
    """What a mirror copies, between clients' properties of two clusters."""

    source: Mapping[str, str]
    target: Mapping[str, str]
    topics: tuple[str, ...]
    folder: Path  # of the run
    leave_configs: bool = False  # of topics on a target that is somebody else's
    copies: int = 1  # how often the mirror's own topics are to be replicated

    @property
    def run(self) -> str:
        return self.folder.name


@dataclass(frozen=True, slots=True)
class Wishes:
    """How the mirror is to be; each kind heeds what means something to it."""

    mode: str = "shallow"
    delivery: str = "idempotent"
    version: str | None = None
    handler: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    prefix: str = ""
    start: str | None = None
    stop: str | None = None


def own_topics(kind: str, *, run: str, prefix: str) -> dict[str, list[str]]:
    """What a mirror makes for itself, by cluster, if it is started by us."""
    if kind == "shoal":
        return {"target": [f"__shoal_mirror_{run}", f"__shoal_offsets_{run}"]}
    if kind == "mm2":
        alias = _alias(prefix)
        kept = ("configs", "offsets", "status")
        return {
            "source": [f"mm2-{name}.target.internal" for name in ("offset-syncs", *kept)],
            "target": [
                *(f"mm2-{name}.{alias}.internal" for name in kept),
                f"{alias}.checkpoints.internal",
                "heartbeats",
            ],
        }
    return {}


def own_groups(kind: str, *, run: str) -> dict[str, list[str]]:
    """Under which a mirror that is started by us reads, by cluster."""
    return {"source": [_mm1_group(run)]} if kind == "mm1" else {}


def _mm1_group(run: str) -> str:
    return f"shoal-{run}-mm1"


def _alias(prefix: str) -> str:
    """How MirrorMaker 2 calls the source: what it puts before names of topics."""
    return prefix.rstrip(".") or "source"


def make_mirror(
    kind: str, route: Route, wishes: Wishes, *, report: Report = lambda _progress: None
) -> Mirror | None:
    """A mirror that is not started yet; None for no mirror at all."""
    match kind:
        case "shoal":
            return _shoal(route, wishes)
        case "mm2":
            return _mirror_maker_2(route, wishes, report)
        case "mm1":
            return _mirror_maker_1(route, wishes, report)
        case "external":
            return ForeignMirror(route, wishes)
        case _:
            return None


def _shoal(route: Route, wishes: Wishes) -> Mirror:
    positions = route.folder / "mirror-positions.json"
    command = [sys.executable, "-m", "shoal", "mirror", "run"]
    for side, properties in (("source", route.source), ("target", route.target)):
        for key, value in properties.items():
            command += [f"--{side}-command-property", f"{key}={value}"]
    command += ["--name", route.run, "--positions", str(positions)]
    command += ["--re-encoded", str(route.folder / RE_ENCODED_FILE)]
    command += ["--topics", ",".join(route.topics), "--refresh-topics-interval-seconds", "2"]
    if route.leave_configs:
        command += ["--no-sync-topic-configs"]
    command += ["--delivery", wishes.delivery]
    if wishes.mode == "deep":
        command += ["--use-raw-bytes", "false"]
    if wishes.prefix:
        command += ["--replication-policy", "default"]
        command += ["--source-alias", wishes.prefix.removesuffix(".")]
    if wishes.handler:
        command += ["--handler", wishes.handler]
    command += wishes.arguments
    return ProcessMirror("shoal", lambda: command, folder=route.folder, positions_file=positions)


def _mirror_maker_2(route: Route, wishes: Wishes, report: Report) -> Mirror:
    version = wishes.version or NEWEST_KAFKA
    alias = _alias(wishes.prefix)
    settings = {
        "clusters": f"{alias}, target",
        f"{alias}->target.enabled": "true",
        f"{alias}->target.topics": ",".join(route.topics),
        f"target->{alias}.enabled": "false",
        "dedicated.mode.enable.internal.rest": "false",
        "refresh.topics.interval.seconds": "5",
        "sync.topic.configs.enabled": str(not route.leave_configs).lower(),
        "sync.topic.acls.enabled": "false",
        **dict.fromkeys(_MM2_COPIES, str(route.copies)),
        **({} if wishes.prefix else {"replication.policy.class": _IDENTITY}),
        **{f"{alias}.{key}": value for key, value in route.source.items()},
        **{f"target.{key}": value for key, value in route.target.items()},
        **wishes.properties,
    }

    def command() -> list[str]:
        file = _written(route.folder / "mm2.properties", settings)
        jars = class_path(fetch_jars(version, report=report)) + os.pathsep
        jars += class_path(fetch_mirror_jars(version, report=report))
        main = "org.apache.kafka.connect.mirror.MirrorMaker"
        return _java(jars, route.folder, version, [main, str(file)])

    return ProcessMirror(
        "mm2",
        command,
        folder=route.folder,
        ready=" replicating ",
    )


def _mirror_maker_1(route: Route, wishes: Wishes, report: Report) -> Mirror:
    version = wishes.version or MM1_KAFKA
    consumer = {
        "group.id": _mm1_group(route.run),
        "auto.offset.reset": "earliest",
        **route.source,
        **_part(wishes.properties, "consumer."),
    }
    producer = {**route.target, **_part(wishes.properties, "producer.")}
    streams = wishes.properties.get("num.streams", "1")

    def command() -> list[str]:
        reading = _written(route.folder / "mm1-consumer.properties", consumer)
        writing = _written(route.folder / "mm1-producer.properties", producer)
        arguments = ["kafka.tools.MirrorMaker", "--consumer.config", str(reading)]
        arguments += ["--producer.config", str(writing), "--num.streams", streams]
        arguments += ["--include", "|".join(route.topics)]
        jars = class_path(fetch_jars(version, report=report))
        return _java(jars, route.folder, version, arguments)

    return ProcessMirror(
        "mm1", command, folder=route.folder, ready="Adding newly assigned partitions"
    )


def _part(properties: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {
        key.removeprefix(prefix): value
        for key, value in properties.items()
        if key.startswith(prefix)
    }


def _written(file: Path, settings: Mapping[str, str]) -> Path:
    file.write_text(javaproperties.dumps(dict(settings), timestamp=False))
    return file


def _java(jars: str, folder: Path, version: str, arguments: Sequence[str]) -> list[str]:
    executable = str(find_java().executable)
    return [executable, *_HEAP, *logging_options(folder, version), "-cp", jars, *arguments]


class ForeignMirror:
    """A mirror that somebody else wrote and, perhaps, runs."""

    kind = "external"
    positions_file = None

    def __init__(self, route: Route, wishes: Wishes) -> None:
        self._route = route
        self._stop_command = wishes.stop
        self._own: ProcessMirror | None = None
        if wishes.start:
            self._own = ProcessMirror(
                self.kind,
                _split(wishes.start),
                folder=route.folder,
                environment=self._environment(),
            )
        self._is_started = False
        self._is_in_background = False

    @property
    def log_file(self) -> Path | None:
        return self._own.log_file if self._own else None

    def start(self) -> None:
        if self._own is not None:
            self._own.start()
            self._is_started = True

    def wait_until_ready(self) -> None:
        """Only its users know."""

    def stop(self) -> None:
        if self._own is None or not self._is_started:
            return
        self._is_started = False
        try:
            if self._stop_command is not None:
                self._run_stop_command(self._stop_command)
        finally:
            self._own.stop()

    def close(self) -> None:
        with suppress(SystemFailure):  # something else failed before, and is told
            self.stop()

    def _run_stop_command(self, command: str) -> None:
        try:
            done = subprocess.run(
                _split(command)(),
                env=self._environment(),
                capture_output=True,
                text=True,
                timeout=_COMMAND_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SystemFailure(f"the mirror's stop command failed: {error}") from error
        if done.returncode != 0:
            said = (done.stderr or done.stdout).strip()[-300:]
            raise SystemFailure(f"the mirror's stop command failed: {said}")

    def kill(self) -> None:
        self._tree("be killed").kill()

    def pause(self) -> None:
        self._tree("be paused").pause()

    def resume(self) -> None:
        self._tree("go on").resume()

    def is_running(self) -> bool:
        return self._own is None or self._own.is_running() or self._is_in_background

    def pids(self) -> tuple[int, ...]:
        return self._own.pids() if self._own else ()

    def check(self) -> None:
        if self._own is None or self._is_in_background:
            return
        if not self._own.is_running() and self._own.exit_code() == 0:
            self._is_in_background = True
            return
        self._own.check()

    def usage(self) -> Usage | None:
        if self._own is None or self._is_in_background:
            return None
        return self._own.usage()

    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "SHOAL_SOURCE": self._route.source[_SERVERS],
            "SHOAL_TARGET": self._route.target[_SERVERS],
            "SHOAL_TOPICS": ",".join(self._route.topics),
        }

    def _tree(self, what: str) -> ProcessMirror:
        if self._own is None or not self._own.is_running():
            raise SystemFailure(
                f"the mirror's processes are not ours: it cannot {what}",
                remedy="give its start command (mirror.start), one that stays in the foreground",
            )
        return self._own


def _split(command: str) -> Callable[[], list[str]]:
    """A command line as a shell would split it, its program found on the path."""

    def parts() -> list[str]:
        words = shlex.split(command)
        return ["/usr/bin/env", *words]

    return parts
