"""Options of `shoal mirror run` for copying: raw or deep mode, and how errors are handled."""

from typing import Any

import rich_click as click

from shoal.cli.shared.options import Command, properties_of
from shoal.mirror.config import ON_BAD_BATCH, ON_LOSS, CopyRules
from shoal.mirror.copy.depth import AUTO_DEPTH, DEPTHS
from shoal.mirror.copy.rebatch import CODECS, KEEP, DeepRules
from shoal.mirror.mm2.patterns import parse_list
from shoal.model.errors import UsageError


def copy_options(command: Command) -> Command:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def read_topic_limits(assignments: tuple[str, ...]) -> dict[str, int]:
    """Limits given as TOPIC=BYTES."""
    limits: dict[str, int] = {}
    for topic, text in properties_of(assignments).items():
        if not text.isdecimal() or not int(text):
            raise UsageError(
                f"{text!r} is not a limit of bytes per second for topic {topic}",
                remedy=f"write --topic-max-bytes-per-s {topic}=1000000",
            )
        limits[topic] = int(text)
    return limits


def copy_rules(options: dict[str, Any]) -> CopyRules:
    return CopyRules(
        depth=options["depth"],
        use_raw_bytes=options["use_raw_bytes"],
        fetch_raw_bytes=options["fetch_raw_bytes"],
        send_raw_bytes=options["send_raw_bytes"],
        deep_topics=parse_list(options["deep_topics"] or ""),
        deep=DeepRules(
            compression_type=options["compression_type"],
            batch_size_bytes=options["batch_size"],
            linger_ms=options["linger_ms"],
        ),
        on_bad_batch=options["on_bad_batch"],
        on_loss=options["on_loss"],
    )


_OPTIONS = (
    click.option(
        "--depth",
        type=click.Choice(DEPTHS),
        default=AUTO_DEPTH,
        show_default=True,
        help="Copy batches as they are (raw), put their records into new batches (deep), or join "
        "only tiny batches, by partition (auto). auto is raw with a handler or compare-and-append.",
    ),
    click.option(
        "--use-raw-bytes",
        type=bool,
        metavar="true|false",
        help="The same in the words of KIP-712: true is --depth raw, false is --depth deep.",
    ),
    click.option("--fetch-raw-bytes", type=bool, metavar="true|false", hidden=True),
    click.option("--send-raw-bytes", type=bool, metavar="true|false", hidden=True),
    click.option(
        "--deep-topics",
        help="Topics (names or regular expressions) to copy deep, with records decoded and put "
        "into new batches, with any --depth.",
    ),
    click.option(
        "--compression-type",
        type=click.Choice((KEEP, *CODECS)),
        default=KEEP,
        show_default=True,
        help="Codec of new batches in deep mode; producer keeps the source's.",
    ),
    click.option(
        "--batch-size",
        type=click.IntRange(min=1),
        default=DeepRules().batch_size_bytes,
        show_default=True,
        help="Bytes of records in a new batch in deep mode.",
    ),
    click.option(
        "--linger-ms",
        type=click.IntRange(min=0),
        default=0,
        show_default=True,
        help="How long records may wait for more records to fill a batch, in deep mode.",
    ),
    click.option(
        "--on-bad-batch",
        type=click.Choice(ON_BAD_BATCH),
        default="park",
        show_default=True,
        help="When a source batch is damaged: park its partition, or read the batch again.",
    ),
    click.option(
        "--on-loss",
        type=click.Choice(ON_LOSS),
        default="report",
        show_default=True,
        help="If the source deleted records before they were copied: report and continue, or fail.",
    ),
)
