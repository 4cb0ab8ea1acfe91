"""The flags of `produce`, `consume` and `bench` for how producers send and consumers read.

Each flag sets a field of `workload.specs`, and has the default of that field.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import rich_click as click

from shoal.cli.shared.options import Command
from shoal.model.serialised import arguments_of
from shoal.workload.specs import CODECS, DRIVERS, SHAPES, ConsumerSpec, FetchSettings, ProducerSpec

ACKS: Final = {"all": -1, "-1": -1, "1": 1, "0": 0}
ASSIGNORS: Final = ("range", "roundrobin", "cooperative-sticky")
_ABOVE_0: Final = click.FloatRange(min=0, min_open=True)


Options = tuple[Callable[[Command], Command], ...]


def _add_options(command: Command, options: Options) -> Command:
    for option in reversed(options):
        command = option(command)
    return command


def producer_options(command: Command) -> Command:
    """Add the flags of a producer: its messages, its rate and its guarantees."""
    options: Options = (
        click.option(
            "--driver",
            type=click.Choice(DRIVERS),
            default=ProducerSpec.driver,
            show_default=True,
            help="raw: shoal's own client, for high load; confluent: librdkafka.",
        ),
        click.option(
            "--producer-acks", type=click.Choice(list(ACKS)), default="all", show_default=True
        ),
        click.option(
            "--idempotent/--no-idempotent",
            default=None,
            help="Write a retried batch only once.  [default: if acks is all]",
        ),
        click.option(
            "--max-in-flight",
            type=click.IntRange(min=1),
            default=ProducerSpec.max_in_flight,
            show_default=True,
            help="Batches in flight for each partition.",
        ),
        click.option(
            "--compression-type", type=click.Choice(CODECS), default="none", show_default=True
        ),
        click.option(
            "--message-size",
            type=int,
            default=700,
            show_default=True,
            help="Bytes of a message, including the identity.",
        ),
        click.option(
            "--payload",
            default=ProducerSpec.payload,
            show_default=True,
            help="Content of messages: random, compressible:RATIO or file:PATH.",
        ),
        click.option(
            "--linger-ms",
            type=click.FloatRange(min=0),
            default=ProducerSpec.linger_us / 1000,
            show_default=True,
            help="How long a message may wait for others in its batch.",
        ),
        *_rate_options(),
        click.option(
            "--transaction-messages",
            type=click.IntRange(min=0),
            default=0,
            help="Messages to each topic in one transaction; 0: no transactions.  [default: 0]",
        ),
        click.option(
            "--abort-every",
            type=click.IntRange(min=0),
            default=0,
            help="Abort every N-th transaction on purpose; 0: none.  [default: 0]",
        ),
    )
    return _add_options(command, options)


def _rate_options() -> Options:
    return (
        click.option(
            "--shape",
            type=click.Choice(SHAPES),
            default=ProducerSpec.shape,
            show_default=True,
            help="How the rate changes over time; it never exceeds --throughput.",
        ),
        click.option(
            "--burst", type=_ABOVE_0, default=ProducerSpec.burst_s, help="Seconds of a burst."
        ),
        click.option(
            "--pause", type=_ABOVE_0, default=ProducerSpec.pause_s, help="Seconds between bursts."
        ),
        click.option(
            "--ramp", type=_ABOVE_0, default=ProducerSpec.ramp_s, help="Seconds of a ramp."
        ),
        click.option(
            "--ramp-from",
            type=click.FloatRange(0, 1, min_open=True),
            default=ProducerSpec.ramp_from,
            help="Fraction of the rate at which a ramp starts.",
        ),
    )


def producer_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a `ProducerSpec` that the flags set."""
    acks = ACKS[values["producer_acks"]]
    idempotent = values["idempotent"]
    settings = {
        "driver": values["driver"],
        "acks": acks,
        "idempotent": acks == -1 if idempotent is None else idempotent,
        "max_in_flight": values["max_in_flight"],
        "codec": values["compression_type"],
        "size_bytes": values["message_size"],
        "payload": values["payload"],
        "linger_us": int(values["linger_ms"] * 1000),
        "shape": values["shape"],
        "burst_s": values["burst"],
        "pause_s": values["pause"],
        "ramp_s": values["ramp"],
        "ramp_from": values["ramp_from"],
        "transaction_messages": values["transaction_messages"],
        "abort_every": values["abort_every"],
        "use_headers": values["use_message_headers"],
    }
    return arguments_of(ProducerSpec, settings)


def consumer_options(command: Command) -> Command:
    """Add the flags of a consumer: what it reads, and from where."""
    options = (
        click.option(
            "--assignment",
            type=click.Choice(["fixed", "group"]),
            default="fixed",
            show_default=True,
            help="Read all partitions, or share them with the other members of the group.",
        ),
        click.option(
            "--assignor",
            type=click.Choice(ASSIGNORS),
            default=ConsumerSpec.assignor,
            show_default=True,
            help="How a group assigns its partitions.",
        ),
        click.option(
            "--isolation-level",
            type=click.Choice(["read_committed", "read_uncommitted"]),
            default="read_committed",
            show_default=True,
        ),
        click.option("--client-rack", default="", help="Read from replicas in this rack."),
        click.option("--broker-id", type=int, help="Read from this broker if it has a replica."),
    )
    return _add_options(command, options)


def consumer_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a `ConsumerSpec` that the flags set, except `fetching`."""
    settings = {
        "in_group": values["assignment"] == "group",
        "assignor": values["assignor"],
        "broker_id": values["broker_id"],
    }
    return arguments_of(ConsumerSpec, settings)


def fetch_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `FetchSettings` that the flags set."""
    settings = {"isolation": values["isolation_level"], "rack": values["client_rack"]}
    return arguments_of(FetchSettings, settings)
