"""Options of `shoal mirror run` for the copying itself: raw or deep, and what cannot be copied."""

from typing import Any

import rich_click as click

from shoal.cli.shared.options import Command
from shoal.mirror.config import ON_BAD_BATCH, ON_LOSS, CopyRules
from shoal.mirror.copy.rebatch import CODECS, KEEP, DeepRules
from shoal.mirror.mm2.patterns import listed


def copy_options(command: Command) -> Command:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def copy_rules(options: dict[str, Any]) -> CopyRules:
    return CopyRules(
        use_raw_bytes=options["use_raw_bytes"],
        fetch_raw_bytes=options["fetch_raw_bytes"],
        send_raw_bytes=options["send_raw_bytes"],
        deep_topics=listed(options["deep_topics"] or ""),
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
        "--use-raw-bytes",
        type=bool,
        default=True,
        show_default=True,
        metavar="true|false",
        help="Pass batches on unopened; false takes records apart and packs them anew.",
    ),
    click.option("--fetch-raw-bytes", type=bool, metavar="true|false", hidden=True),
    click.option("--send-raw-bytes", type=bool, metavar="true|false", hidden=True),
    click.option(
        "--deep-topics",
        help="Topics, by names or expressions, whose records are taken apart although others' "
        "are not.",
    ),
    click.option(
        "--compression-type",
        type=click.Choice((KEEP, *CODECS)),
        default=KEEP,
        show_default=True,
        help="Of batches that are packed anew; producer keeps the source's.",
    ),
    click.option(
        "--batch-size",
        type=click.IntRange(min=1),
        default=DeepRules().batch_size_bytes,
        show_default=True,
        help="Bytes of records in a batch that is packed anew.",
    ),
    click.option(
        "--linger-ms",
        type=click.IntRange(min=0),
        default=0,
        show_default=True,
        help="How long records may wait for more to be packed with.",
    ),
    click.option(
        "--on-bad-batch",
        type=click.Choice(ON_BAD_BATCH),
        default="park",
        show_default=True,
        help="When a batch of the source is damaged: leave its partition, or read it again.",
    ),
    click.option(
        "--on-loss",
        type=click.Choice(ON_LOSS),
        default="report",
        show_default=True,
        help="When the source deleted records before they were copied: go on behind them, or end.",
    ),
)
