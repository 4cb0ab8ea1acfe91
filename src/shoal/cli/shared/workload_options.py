"""How producers send and consumers read: the flags that `produce`, `consume` and `bench` share.

Each becomes a field of `workload.specs`, whose defaults are the flags' defaults.
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


def _added(command: Command, options: Options) -> Command:
    for option in reversed(options):
        command = option(command)
    return command


def producer_options(command: Command) -> Command:
    """What a producer sends, at which pace, and what it promises."""
    options: Options = (
        click.option(
            "--driver",
            type=click.Choice(DRIVERS),
            default=ProducerSpec.driver,
            show_default=True,
            help="Our own client, for load, or librdkafka.",
        ),
        click.option(
            "--producer-acks", type=click.Choice(list(ACKS)), default="all", show_default=True
        ),
        click.option(
            "--idempotent/--no-idempotent",
            default=None,
            help="Whether a repeated batch is written once.  [default: with all acks]",
        ),
        click.option(
            "--max-in-flight",
            type=click.IntRange(min=1),
            default=ProducerSpec.max_in_flight,
            show_default=True,
            help="Batches without an answer.",
        ),
        click.option(
            "--compression-type", type=click.Choice(CODECS), default="none", show_default=True
        ),
        click.option(
            "--message-size",
            type=int,
            default=700,
            show_default=True,
            help="Bytes of a message, the header section included.",
        ),
        click.option(
            "--payload",
            default=ProducerSpec.payload,
            show_default=True,
            help="What fills messages: random, compressible:RATIO or file:PATH.",
        ),
        click.option(
            "--linger-ms",
            type=click.FloatRange(min=0),
            default=ProducerSpec.linger_us / 1000,
            show_default=True,
            help="How long a message may wait for others.",
        ),
        *_rate_options(),
        click.option(
            "--transaction-messages",
            type=click.IntRange(min=0),
            default=0,
            help="Messages to each topic in one transaction.  [default: no transactions]",
        ),
        click.option(
            "--abort-every",
            type=click.IntRange(min=0),
            default=0,
            help="Of so many transactions, abort the last on purpose.  [default: none]",
        ),
    )
    return _added(command, options)


def _rate_options() -> Options:
    return (
        click.option(
            "--shape",
            type=click.Choice(SHAPES),
            default=ProducerSpec.shape,
            show_default=True,
            help="How the rate goes; it is never above --throughput.",
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
            help="Part of the rate at which a ramp begins.",
        ),
    )


def producer_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a `ProducerSpec` that the flags name."""
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
    """How a consumer reads."""
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
            help="How a group shares its partitions.",
        ),
        click.option(
            "--isolation-level",
            type=click.Choice(["read_committed", "read_uncommitted"]),
            default="read_committed",
            show_default=True,
        ),
        click.option("--client-rack", default="", help="Read from replicas in this rack."),
        click.option("--broker-id", type=int, help="Read from this broker where it has a replica."),
    )
    return _added(command, options)


def consumer_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a `ConsumerSpec` that the flags name, but for those of its fetching."""
    settings = {
        "in_group": values["assignment"] == "group",
        "assignor": values["assignor"],
        "broker_id": values["broker_id"],
    }
    return arguments_of(ConsumerSpec, settings)


def fetch_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `FetchSettings` that the flags name."""
    settings = {"isolation": values["isolation_level"], "rack": values["client_rack"]}
    return arguments_of(FetchSettings, settings)
