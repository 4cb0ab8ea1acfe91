"""The flags of Kafka Mirror Tester and of Kafka end-to-end perf test exist, with their meaning."""

from typing import Any

import pytest
import rich_click as click

from shoal.cli.bench import bench
from shoal.cli.produce import consume, produce
from shoal.cli.shared.workload_options import producer_settings
from shoal.workload.specs import ProducerSpec

MIRROR_TESTER_PRODUCER = {
    *("--id", "--topics", "--throughput", "--message-size", "--bootstrap-server"),
    "--use-message-headers",
}
MIRROR_TESTER_CONSUMER = {"--topics", "--bootstrap-server", "--use-message-headers"}
END_TO_END = {
    *("--leader-host", "--leader-port", "--leader-expect-offers"),
    *("--kafka-bootstrap-host", "--kafka-bootstrap-port", "--kafka-topic"),
    *("--test-producer-processes", "--test-consumer-processes", "--test-produce-messages"),
    *("--producer-acks", "-d", "--debug"),
}


@pytest.mark.parametrize(
    ("command", "flags"),
    [
        (produce, MIRROR_TESTER_PRODUCER | {"--messages", "--producer-acks"}),
        (consume, MIRROR_TESTER_CONSUMER),
        (bench, END_TO_END | {"--producers", "--consumers", "--messages", "--producer-acks"}),
    ],
    ids=["produce", "consume", "bench"],
)
def test_every_flag_is_there(command: click.Command, flags: set[str]) -> None:
    known = {name for option in command.params for name in option.opts}
    assert flags <= known, sorted(flags - known)


def parse_flags(command: click.Command, *arguments: str) -> dict[str, Any]:
    with command.make_context(command.name or "", list(arguments)) as context:
        return dict(context.params)


@pytest.mark.parametrize(("text", "acks"), [("0", 0), ("1", 1), ("all", -1)])
def test_acks_mean_what_they_say(text: str, acks: int) -> None:
    values = parse_flags(bench, "--producer-acks", text, "--test-producer-processes", "3")
    assert values["producers"] == 3
    assert values["message_size"] == 700
    settings = producer_settings(values)
    assert (settings["acks"], settings["idempotent"]) == (acks, acks == -1)


def test_the_flags_make_a_producer() -> None:
    where = ("--bootstrap-server", "b:1", "--topics", "t")
    how = ("--driver", "confluent", "--no-idempotent", "--max-in-flight", "9", "--shape", "burst")
    values = parse_flags(produce, *where, *how, "--burst", "2", "--linger-ms", "0.25")
    spec = ProducerSpec("r", "p", (), 1.0, **producer_settings(values))
    assert (spec.driver, spec.idempotent, spec.max_in_flight) == ("confluent", False, 9)
    assert (spec.shape, spec.burst_s, spec.linger_us) == ("burst", 2.0, 250)
