"""`shoal mirror`: copy topics from one cluster to another, batch by batch."""

from pathlib import Path
from typing import Any

import rich_click as click

from shoal.cli.options import Command, cluster_options, cluster_properties
from shoal.mirror.config import MirrorConfig


@click.group()
def mirror() -> None:
    """Copy topics between clusters without unpacking their record batches.

    \b
    shoal mirror run --source-bootstrap-server 127.0.0.1:9092 \\
                     --target-bootstrap-server 127.0.0.1:9192 --topics orders,payments
    """


def _both_clusters(command: Command) -> Command:
    return cluster_options("source")(cluster_options("target")(command))


@mirror.command("run")
@_both_clusters
@click.option("--topics", required=True, help="Topics to copy, separated by commas.")
@click.option(
    "--handler",
    metavar="MODULE:FUNCTION",
    help="A Python function that sees each batch and may pass, change or drop it.",
)
@click.option(
    "--positions",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write down here how far the copy came.",
)
@click.option("--stop-with-parent", is_flag=True, help="End when the starting process ends.")
def run_command(
    *, topics: str, handler: str | None, positions: Path | None, stop_with_parent: bool, **rest: Any
) -> None:
    """Copy until stopped (Ctrl-C): every batch as it is, in order, once."""
    from shoal.mirror.command import run_mirror

    run_mirror(
        MirrorConfig(
            source=cluster_properties("source", rest),
            target=cluster_properties("target", rest),
            topics=tuple(topic.strip() for topic in topics.split(",")),
            handler=handler,
            positions=positions,
            stop_with_parent=stop_with_parent,
        )
    )
