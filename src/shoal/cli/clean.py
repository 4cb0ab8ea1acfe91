"""`shoal clean`: delete what a run left on clusters, and nothing else."""

import asyncio
from pathlib import Path
from typing import Any

import rich_click as click

from shoal.cli.shared import console
from shoal.cli.shared.complete import complete_run
from shoal.cli.shared.named_files import refusing_malformed_files
from shoal.cli.shared.options import cluster_options, cluster_properties, runs_dir_option
from shoal.model.errors import UsageError
from shoal.model.exit_codes import ExitCode


@click.command()
@click.argument("run", metavar="RUN", shell_complete=complete_run)
@click.option("--dry-run", is_flag=True, help="Show what would be deleted, and exit.")
@cluster_options("source")
@cluster_options("target")
@runs_dir_option
def clean(*, run: str, dry_run: bool, runs_dir: Path, **rest: Any) -> ExitCode:
    """Delete the topics, mirrored copies and groups that RUN created, also after a crash.

    Only what the run's manifest (created.json) lists is deleted, and what a killed
    `shoal audit --follow` has left in the run's folder. The manifest has no passwords: give them
    with --source-command-config and --target-command-config.
    """
    from shoal.audit.growth.keeper import remove_snapshots
    from shoal.experiment.clean import clean as delete
    from shoal.experiment.runs import find_run

    with refusing_malformed_files():
        found = find_run(runs_dir, run)
    if found.state == "running":
        raise UsageError(f"run {found.run} is still running", remedy="stop it first (Ctrl-C)")
    properties = {side: cluster_properties(side, rest) for side in ("source", "target")}
    if remove_snapshots(found.path, dry_run=dry_run):
        verb = "would delete" if dry_run else "deleted"
        console.print_line(f"{verb} the snapshots of a follower in {found.path}")
    done = asyncio.run(delete(found.path, properties, dry_run=dry_run))
    verb = "would delete" if dry_run else "deleted"
    for role, cleaned in done.items():
        for kind, names in (("topic", cleaned.topics), ("group", cleaned.groups)):
            for name in names:
                console.print_line(f"{verb} {kind} {name} on the {role}")
        for reason in cleaned.skipped:
            console.print_line(f"not deleted: {reason}")
    if not any(one.topics or one.groups or one.skipped for one in done.values()):
        console.print_line("nothing to delete: no topic or group of this run exists")
    return ExitCode.UNEXPECTED if any(one.skipped for one in done.values()) else ExitCode.PROVEN
