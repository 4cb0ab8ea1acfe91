"""The kinds of mirror that can be under test: shoal's, MirrorMaker 1 and 2, and external ones.

Rules:
- Each is started by the command line that its users type, with files in the run's folder.
- For Apache Kafka's mirrors only the settings that follow from the size of the clusters are set;
  the user's properties override them.
- An external mirror is already running, or the user's commands start and stop it. The commands
  find `SHOAL_SOURCE`, `SHOAL_TARGET` and `SHOAL_TOPICS` in their environment. If the start command
  exits with code 0, the mirror is assumed to run in the background.
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

# In the run's folder: the batches that shoal's mirror re-encoded.
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
class MirrorRoute:
    """What a mirror copies, with the client properties of both clusters."""

    source: Mapping[str, str]
    target: Mapping[str, str]
    topics: tuple[str, ...]
    folder: Path  # of the run
    leave_configs: bool = False  # do not change topic configs: the target is external
    copies: int = 1  # replication factor of the mirror's own topics

    @property
    def run(self) -> str:
        return self.folder.name


@dataclass(frozen=True, slots=True)
class MirrorOptions:
    """Options of the mirror; each kind uses those that apply to it."""

    mode: str = "auto"
    delivery: str = "idempotent"
    version: str | None = None
    handler: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    prefix: str = ""
    start: str | None = None
    stop: str | None = None


def own_topics(kind: str, *, run: str, prefix: str) -> dict[str, list[str]]:
    """The topics that a mirror started by shoal creates for itself, by cluster."""
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
    """The consumer groups of a mirror started by shoal, by cluster."""
    return {"source": [_mm1_group(run)]} if kind == "mm1" else {}


def _mm1_group(run: str) -> str:
    return f"shoal-{run}-mm1"


def _alias(prefix: str) -> str:
    """MirrorMaker 2's alias of the source: its prefix for topic names."""
    return prefix.rstrip(".") or "source"


def make_mirror(
    kind: str,
    route: MirrorRoute,
    options: MirrorOptions,
    *,
    report: Report = lambda _progress: None,
) -> Mirror | None:
    """Make the mirror without starting it; None for the kind `none`."""
    match kind:
        case "shoal":
            return _shoal(route, options)
        case "mm2":
            return _mirror_maker_2(route, options, report)
        case "mm1":
            return _mirror_maker_1(route, options, report)
        case "external":
            return ExternalMirror(route, options)
        case _:
            return None


_DEPTHS: Final = {"auto": "auto", "shallow": "raw", "deep": "deep"}


def _shoal(route: MirrorRoute, options: MirrorOptions) -> Mirror:
    positions = route.folder / "mirror-positions.json"
    command = [sys.executable, "-m", "shoal", "mirror", "run"]
    for side, properties in (("source", route.source), ("target", route.target)):
        for key, value in properties.items():
            command += [f"--{side}-command-property", f"{key}={value}"]
    command += ["--name", route.run, "--positions", str(positions)]
    command += ["--re-encoded", str(route.folder / RE_ENCODED_FILE)]
    command += ["--events", str(route.folder / "mirror")]
    command += ["--topics", ",".join(route.topics), "--refresh-topics-interval-seconds", "2"]
    if route.leave_configs:
        command += ["--no-sync-topic-configs"]
    command += ["--delivery", options.delivery]
    command += ["--depth", _DEPTHS[options.mode]]
    if options.prefix:
        command += ["--replication-policy", "default"]
        command += ["--source-alias", options.prefix.removesuffix(".")]
    if options.handler:
        command += ["--handler", options.handler]
    command += options.arguments
    return ProcessMirror("shoal", lambda: command, folder=route.folder, positions_file=positions)


def _mirror_maker_2(route: MirrorRoute, options: MirrorOptions, report: Report) -> Mirror:
    version = options.version or NEWEST_KAFKA
    alias = _alias(options.prefix)
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
        **({} if options.prefix else {"replication.policy.class": _IDENTITY}),
        **{f"{alias}.{key}": value for key, value in route.source.items()},
        **{f"target.{key}": value for key, value in route.target.items()},
        **options.properties,
    }

    def command() -> list[str]:
        file = _write_properties(route.folder / "mm2.properties", settings)
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


def _mirror_maker_1(route: MirrorRoute, options: MirrorOptions, report: Report) -> Mirror:
    version = options.version or MM1_KAFKA
    consumer = {
        "group.id": _mm1_group(route.run),
        "auto.offset.reset": "earliest",
        **route.source,
        **_with_prefix(options.properties, "consumer."),
    }
    producer = {**route.target, **_with_prefix(options.properties, "producer.")}
    streams = options.properties.get("num.streams", "1")

    def command() -> list[str]:
        reading = _write_properties(route.folder / "mm1-consumer.properties", consumer)
        writing = _write_properties(route.folder / "mm1-producer.properties", producer)
        arguments = ["kafka.tools.MirrorMaker", "--consumer.config", str(reading)]
        arguments += ["--producer.config", str(writing), "--num.streams", streams]
        arguments += ["--include", "|".join(route.topics)]
        jars = class_path(fetch_jars(version, report=report))
        return _java(jars, route.folder, version, arguments)

    return ProcessMirror(
        "mm1", command, folder=route.folder, ready="Adding newly assigned partitions"
    )


def _with_prefix(properties: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {
        key.removeprefix(prefix): value
        for key, value in properties.items()
        if key.startswith(prefix)
    }


def _write_properties(file: Path, settings: Mapping[str, str]) -> Path:
    file.write_text(javaproperties.dumps(dict(settings), timestamp=False))
    return file


def _java(jars: str, folder: Path, version: str, arguments: Sequence[str]) -> list[str]:
    executable = str(find_java().executable)
    return [executable, *_HEAP, *logging_options(folder, version), "-cp", jars, *arguments]


class ExternalMirror:
    """A mirror that is not part of shoal or Kafka; perhaps the user runs it."""

    kind = "external"
    positions_file = None

    def __init__(self, route: MirrorRoute, options: MirrorOptions) -> None:
        self._route = route
        self._stop_command = options.stop
        self._process: ProcessMirror | None = None
        if options.start:
            self._process = ProcessMirror(
                self.kind,
                _split_command(options.start),
                folder=route.folder,
                environment=self._environment(),
            )
        self._is_started = False
        self._is_in_background = False

    @property
    def log_file(self) -> Path | None:
        return self._process.log_file if self._process else None

    def start(self) -> None:
        if self._process is not None:
            self._process.start()
            self._is_started = True

    def wait_until_ready(self) -> None:
        """Returns at once: there is no general way to see whether it is ready."""

    def stop(self) -> None:
        if self._process is None or not self._is_started:
            return
        self._is_started = False
        try:
            if self._stop_command is not None:
                self._run_stop_command(self._stop_command)
        finally:
            self._process.stop()

    def close(self) -> None:
        with suppress(SystemFailure):  # an earlier failure is already reported
            self.stop()

    def _run_stop_command(self, command: str) -> None:
        try:
            done = subprocess.run(
                _split_command(command)(),
                env=self._environment(),
                capture_output=True,
                text=True,
                timeout=_COMMAND_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SystemFailure(f"cannot run the mirror's stop command: {error}") from error
        if done.returncode != 0:
            output = (done.stderr or done.stdout).strip()[-300:]
            raise SystemFailure(f"the mirror's stop command failed: {output}")

    def kill(self) -> None:
        self._require_process("be killed").kill()

    def pause(self) -> None:
        self._require_process("be paused").pause()

    def resume(self) -> None:
        self._require_process("be resumed").resume()

    def is_running(self) -> bool:
        return self._process is None or self._process.is_running() or self._is_in_background

    def pids(self) -> tuple[int, ...]:
        return self._process.pids() if self._process else ()

    def check(self) -> None:
        if self._process is None or self._is_in_background:
            return
        if not self._process.is_running() and self._process.exit_code() == 0:
            self._is_in_background = True
            return
        self._process.check()

    def usage(self) -> Usage | None:
        if self._process is None or self._is_in_background:
            return None
        return self._process.usage()

    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "SHOAL_SOURCE": self._route.source[_SERVERS],
            "SHOAL_TARGET": self._route.target[_SERVERS],
            "SHOAL_TOPICS": ",".join(self._route.topics),
        }

    def _require_process(self, what: str) -> ProcessMirror:
        if self._process is None or not self._process.is_running():
            raise SystemFailure(
                f"the external mirror cannot {what}: shoal does not know its processes",
                remedy="set mirror.start to a command that stays in the foreground",
            )
        return self._process


def _split_command(command: str) -> Callable[[], list[str]]:
    """A command line split as a shell would; `env` finds its program on the path."""

    def parts() -> list[str]:
        words = shlex.split(command)
        return ["/usr/bin/env", *words]

    return parts
