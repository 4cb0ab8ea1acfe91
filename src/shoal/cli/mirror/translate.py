"""`shoal mirror translate`: translates source offsets to target offsets."""

import asyncio
from typing import TYPE_CHECKING, Any

import rich_click as click

from shoal.cli.shared import console
from shoal.cli.shared.options import cluster_options, cluster_properties, output_option
from shoal.model.errors import SystemFailure, UsageError
from shoal.model.exit_codes import ExitCode
from shoal.model.topics import TopicPartition

if TYPE_CHECKING:
    from shoal.mirror.translation import TranslatedOffset


@click.command("translate")
@click.argument("positions", nargs=-1, metavar="[TOPIC:PARTITION:OFFSET]...")
@cluster_options("source")
@cluster_options("target")
@click.option("--name", default="default", show_default=True, help="Name of the mirror.")
@click.option(
    "--group", help="Translate all committed offsets of this consumer group of the source."
)
@click.option(
    "--commit",
    is_flag=True,
    help="Commit the translated offsets at the target; refused while the group has members there.",
)
@output_option
def translate_command(
    *,
    positions: tuple[str, ...],
    name: str,
    group: str | None,
    commit: bool,
    output: str,
    **rest: Any,
) -> ExitCode:
    """Translate source offsets to target offsets, exactly, by the mirror's offset map.

    \b
    shoal mirror translate --target-bootstrap-server 127.0.0.1:9192 orders:0:1234
    shoal mirror translate --source-bootstrap-server 127.0.0.1:9092 \\
        --target-bootstrap-server 127.0.0.1:9192 --group billing --commit

    Exit code 0 if all are known, 5 if the mirror has not copied that far yet.
    """
    if bool(positions) == bool(group) or (commit and not group):
        raise UsageError(
            "translate needs either positions or a group",
            remedy="give TOPIC:PARTITION:OFFSET, or --group NAME, with --commit to move it",
        )
    target = cluster_properties("target", rest)
    if group is None:
        places = asyncio.run(_positions(target, name, [_position(text) for text in positions]))
    else:
        places = asyncio.run(
            _group(cluster_properties("source", rest), target, name, group, commit=commit)
        )
    _show(places, output)
    is_known = all(place.target_offset is not None for place in places)
    return ExitCode.PROVEN if is_known else ExitCode.INCONCLUSIVE


async def _positions(
    target: dict[str, str], name: str, positions: list[tuple[TopicPartition, int]]
) -> "list[TranslatedOffset]":
    from shoal.client.client import Client
    from shoal.mirror.translation import Translator

    async with Client(target) as client:
        translator = Translator(client, name)
        await translator.refresh()
        return [translator.translate(tp, offset) for tp, offset in positions]


async def _group(
    source: dict[str, str], target: dict[str, str], name: str, group: str, *, commit: bool
) -> "list[TranslatedOffset]":
    from shoal.client.client import Client
    from shoal.mirror.translation import GroupSync, Translator, require_known

    async with Client(source) as source_client, Client(target) as target_client:
        translator = Translator(target_client, name, source=source_client)
        await translator.refresh()
        groups = GroupSync(source_client, target_client, translator)
        places = await groups.places(group)
        if not places:
            raise UsageError(
                f"the group {group} has no committed offsets in mirrored topics",
                remedy="check the group and the mirror's --name",
            )
        if commit:
            require_known(places)
            move = await groups.move(group)
            if move.is_active:
                raise SystemFailure(
                    f"the group {group} has members at the target: its offsets are not changed",
                    remedy="stop its consumers there, and try again",
                )
            places = move.places
        return places


def _position(text: str) -> tuple[TopicPartition, int]:
    try:
        topic, partition, offset = text.rsplit(":", 2)
        return TopicPartition(topic, int(partition)), int(offset)
    except ValueError as error:
        raise UsageError(
            f"{text!r} is not a valid position", remedy="write it as TOPIC:PARTITION:OFFSET"
        ) from error


def _name_partition(partition: TopicPartition) -> dict[str, Any]:
    return {"topic": partition.topic, "partition": partition.partition}


def _show(places: "list[TranslatedOffset]", output: str) -> None:
    if output == "json":
        console.print_json(
            [
                {
                    "source": _name_partition(place.source),
                    "source_offset": place.source_offset,
                    "target": _name_partition(place.target),
                    "target_offset": place.target_offset,
                    "why": place.why or None,
                }
                for place in places
            ]
        )
        return
    for place in places:
        unknown = f"not available: {place.why}" if place.why else "not copied yet"
        found = unknown if place.target_offset is None else f"{place.target_offset}"
        text = f"{place.source} {place.source_offset} -> {place.target} {found}"
        console.out.print(text, markup=False)
