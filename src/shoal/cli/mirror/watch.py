"""`shoal mirror status`, `pause` and `resume`: commands to a mirror in another terminal."""

from typing import TYPE_CHECKING, Any

import rich_click as click

from shoal.cli.mirror.proofs import describe_proof
from shoal.cli.shared import console
from shoal.cli.shared.complete import complete_mirror
from shoal.cli.shared.options import Command, output_option
from shoal.mirror.copy.depth import DEEP
from shoal.model.serialised import to_plain
from shoal.model.units import format_bytes

if TYPE_CHECKING:
    from shoal.mirror.proof.files import Proof
    from shoal.mirror.status import MirrorStatus, PartitionStatus


def _name_option(command: Command) -> Command:
    return click.option(
        "--name",
        help="Name of the mirror; not needed if only one runs.",
        shell_complete=complete_mirror,
    )(command)


@click.command("status")
@_name_option
@output_option
def status_command(*, name: str | None, output: str) -> None:
    """Show position and lag of the mirrors on this machine, up to the last stable offsets."""
    _show_status(name, output)


@click.command("pause")
@_name_option
@output_option
def pause_command(*, name: str | None, output: str) -> None:
    """Pause a mirror until it is resumed; batches that it has fetched are still delivered."""
    _act("pause", name, output)


@click.command("resume")
@_name_option
@output_option
def resume_command(*, name: str | None, output: str) -> None:
    """Resume a paused mirror."""
    _act("resume", name, output)


def _act(command: str, name: str | None, output: str) -> None:
    """The same action as on the page, and what the mirror says then."""
    from shoal.control.actions import Action, act
    from shoal.mirror.control import find_flows

    for flow in find_flows(name):
        act(Action(f"mirror:{flow}", command))
    _show_status(name, output)


def _show_status(name: str | None, output: str) -> None:
    from shoal.mirror.control import send_command

    answers = send_command("status", name)
    proofs = {flow: _read_proof(flow) for answer in answers for flow in answer["flows"]}
    if output == "json":
        for answer in answers:
            named = {flow: proofs[flow] for flow in answer["flows"]}
            answer["proofs"] = {
                n: None if each is None else to_plain(each) for n, each in named.items()
            }
        console.print_json(answers)
        return
    for answer in answers:
        for flow, body in answer["flows"].items():
            _show(flow, answer["pid"], body, proofs[flow])


def _read_proof(flow: str) -> "Proof | None":
    from shoal.mirror.proof.files import read_proof
    from shoal.telemetry.discovery import mirror_folder

    return read_proof(mirror_folder(flow))


def _show(flow: str, pid: int, body: dict[str, Any] | None, proof: "Proof | None") -> None:
    from shoal.mirror.status import MirrorStatus

    if body is None:
        console.out.print(f"{flow} (process {pid}): not copying yet", markup=False)
        return
    status = MirrorStatus.from_json(body)
    state = "paused" if status.paused else "running"
    console.out.print(f"{flow} (process {pid}): {state}, {_lag(status)}", markup=False)
    proven = {} if proof is None else proof.select(status.partitions)
    for partition in status.partitions:
        text = _line(partition)
        if (each := proven.get(str(partition.route.source))) is not None:
            text += f"; {describe_proof(each)}"
        console.out.print(f"  {text}", markup=False)
    for notice in status.notices:
        console.out.print(f"  NOTICE: {notice}", markup=False)
    for error in status.refused:
        console.out.print(f"  NOT COPIED: {error}", markup=False)


def _lag(status: "MirrorStatus") -> str:
    text = _amounts(status.lag, status.lag_bytes, status.lag_s)
    if status.counts.lost:
        text += f", LOST {status.counts.lost:,} offsets"
    if status.counts.truncated:
        text += f", TRUNCATED at the source {status.counts.truncated:,} copied records"
    return text


def _line(partition: "PartitionStatus") -> str:
    at = "not started" if partition.position < 0 else f"at {partition.position}"
    text = f"{partition.route}: {at}, "
    text += _amounts(partition.lag, partition.lag_bytes, partition.lag_s)
    if partition.depth == DEEP:
        text += "; copied deep"
    if partition.held_back:
        text += f"; an open transaction at the source holds back {partition.held_back:,} more"
    if partition.generation > 1:
        text += f"; generation {partition.generation} ({partition.generation_reason}), at the "
        text += f"target from offset {partition.generation_target_offset} on"
    if partition.parked:
        text += f"; PARKED: {partition.parked}"
        text += f" ({partition.remedy})" if partition.remedy else ""
    elif partition.waiting:
        text += f"; WAITING: {partition.waiting}"
        text += f" ({partition.remedy})" if partition.remedy else ""
    return text


def _amounts(lag: int, lag_bytes: int, lag_s: float) -> str:
    if lag < 0:
        return "lag unknown"
    parts = [f"lag {lag:,} records"]
    if lag_bytes >= 0:
        parts.append(format_bytes(lag_bytes))
    if lag_s >= 0:
        parts.append(f"{lag_s:.1f} s")
    return ", ".join(parts)
