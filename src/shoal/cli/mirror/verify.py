"""`shoal mirror verify`: compares source and target, once or continuously."""

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import rich_click as click

from shoal.cli.mirror.options import naming, naming_options
from shoal.cli.mirror.proofs import describe_proof
from shoal.cli.shared import console
from shoal.cli.shared.complete import complete_topics
from shoal.cli.shared.options import cluster_options, cluster_properties, output_option
from shoal.mirror.mm2.patterns import parse_list
from shoal.model.exit_codes import ExitCode
from shoal.model.serialised import to_plain

if TYPE_CHECKING:
    from shoal.mirror.proof.comparison import PartitionReport
    from shoal.mirror.proof.files import PartitionProof

PRINT_EVERY_S: Final = 5.0


@click.command("verify")
@cluster_options("source")
@cluster_options("target")
@click.option(
    "--topics",
    required=True,
    help="Topics to compare, separated by commas.",
    shell_complete=complete_topics,
)
@click.option(
    "--follow",
    is_flag=True,
    help="Compare until stopped (Ctrl-C), and keep in mirrors/NAME/proof.json of the state folder "
    "up to which offset each partition is proven equal; shoal mirror status shows it.",
)
@click.option(
    "--name", default="default", show_default=True, help="Name of the mirror, with --follow."
)
@naming_options
@output_option
def verify_command(*, topics: str, follow: bool, name: str, output: str, **rest: Any) -> ExitCode:
    """Compare the logs of source and target, batch by batch; writes nothing to them.

    Exit code 0 if the target has all records of the source, 4 if they differ. 5 if what can be
    compared is equal, and the target is behind, has deleted records that the source has, or was
    begun behind the source's log start; if a topic is compacted and the logs differ; or if a
    partition is not available.
    """
    if follow:
        return _follow(parse_list(topics), name, output, rest)
    from shoal.client.client import Client
    from shoal.mirror.verify import verify

    async def compare() -> "list[PartitionReport]":
        async with (
            Client(cluster_properties("source", rest)) as source,
            Client(cluster_properties("target", rest)) as target,
        ):
            return await verify(source, target, parse_list(topics), naming(rest))

    reports = asyncio.run(compare())
    if output == "json":
        console.print_json([_as_json(report) for report in reports])
    else:
        for report in reports:
            console.out.print(_format_report(report), markup=False)
    if any(report.difference for report in reports):
        return ExitCode.VIOLATED
    return ExitCode.PROVEN if all(map(_has_all, reports)) else ExitCode.INCONCLUSIVE


def _has_all(report: "PartitionReport") -> bool:
    """Whether the target has all records of the source."""
    lacks = report.not_yet or report.source_only or report.not_copied
    return not (lacks or report.unavailable)


def _as_json(report: "PartitionReport") -> dict[str, Any]:
    body: dict[str, Any] = to_plain(report)
    body["partition"] = {"topic": report.partition.topic, "number": report.partition.partition}
    return body


def _format_report(report: "PartitionReport") -> str:
    text = f"{report.partition}: {report.records:,} records are equal"
    if report.records_one_by_one:
        text += f", {report.records_one_by_one:,} of them in other batches"
    if report.not_copied:
        text += (
            f"; the mirror's checkpoint says that the copy began {report.not_copied:,} offsets "
            "behind the source's log start: these are NOT COPIED"
        )
    if report.source_only:
        text += f"; {report.source_only:,} source records are NOT AT THE TARGET: they are below "
        text += "its log start, which deleted them"
    if target_only := report.passed_over - report.source_only:
        text += f"; {target_only:,} target records are below the source's log start"
    if report.earlier_generations:
        text += (
            f"; {report.earlier_generations:,} target offsets before them are from a topic that "
        )
        text += "the source no longer has"
    if report.not_yet:
        text += f"; the target is {report.not_yet:,} source offsets behind"
    if report.unavailable:
        text += f"; NOT COMPARED to the end: {report.unavailable}"
    if report.difference is not None:
        where = report.difference
        text += f"; DIFFERENT at source {where.source_offset}, target {where.target_offset}: "
        text += where.what
    return text


def _follow(topics: tuple[str, ...], name: str, output: str, rest: dict[str, Any]) -> ExitCode:
    from shoal.client.client import Client
    from shoal.mirror.command import stop_on_signals
    from shoal.mirror.offsets.checkpoints import check_name
    from shoal.mirror.proof.files import lock_folder
    from shoal.mirror.proof.follower import ProofFollower
    from shoal.telemetry.discovery import mirror_folder

    check_name(name)
    folder = mirror_folder(name)

    async def compare() -> "list[PartitionProof]":
        stop = asyncio.Event()
        async with (
            Client(cluster_properties("source", rest)) as source,
            Client(cluster_properties("target", rest)) as target,
        ):
            follower = ProofFollower(
                source, target, topics, mirror=name, folder=folder, naming=naming(rest)
            )
            with stop_on_signals(stop):
                await follower.run(stop, on_round=_reporter())
            return follower.partitions

    with lock_folder(folder):
        proofs = asyncio.run(compare())
    if output == "json":
        console.print_json([to_plain(proof) for proof in proofs])
    else:
        for proof in proofs:
            console.out.print(f"{proof.source}: {describe_proof(proof)}", markup=False)
    if any(proof.difference for proof in proofs):
        return ExitCode.VIOLATED
    is_equal = all(p.proven_offset >= p.source_end >= 0 and not p.unavailable for p in proofs)
    return ExitCode.PROVEN if is_equal else ExitCode.INCONCLUSIVE


def _reporter() -> "Callable[[list[PartitionProof]], None]":
    """Return a function that prints differences at once, and a summary periodically."""
    said: set[str] = set()
    spoken_at = -PRINT_EVERY_S

    def report(proofs: "list[PartitionProof]") -> None:
        nonlocal spoken_at
        differing = {proof.source for proof in proofs if proof.difference}
        for proof in proofs:
            if proof.source in differing - said:
                console.say(f"{proof.source}: {describe_proof(proof)}")
        said.clear()
        said.update(differing)
        if time.monotonic() - spoken_at < PRINT_EVERY_S:
            return
        spoken_at = time.monotonic()
        unavailable = sum(bool(proof.unavailable) for proof in proofs)
        behind = sum(proof.proven_offset < proof.source_end for proof in proofs)
        text = f"{len(proofs)} partitions: {len(differing)} differ, {unavailable} are not available"
        console.say(f"{text}, {behind} are not proven up to the source's end yet")

    return report
