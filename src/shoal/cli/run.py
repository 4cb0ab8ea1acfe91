"""`shoal run`: one experiment, from its file to its verdict."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from shoal.cli.demo import new_run_dir, watching
from shoal.cli.shared import console
from shoal.cli.shared.options import COUNT, SIZE, output_option, runs_dir_option
from shoal.model.exit_codes import ExitCode
from shoal.model.units import format_bytes

if TYPE_CHECKING:
    from shoal.experiment.faults.fault_injection import Ground
    from shoal.experiment.placing import Placing
    from shoal.experiment.safety import Leave
    from shoal.experiment.spec import ExperimentSpec
    from shoal.model.result import Result
    from shoal.systems.apache.ivy import Progress as Start


@click.command()
@click.argument("experiment", required=False, metavar="FILE|PRESET")
@click.option(
    "--set", "sets", multiple=True, metavar="KEY=VALUE", help="As if it stood in the file."
)
@click.option(
    "--engine",
    type=click.Choice(["lite", "apache"]),
    help="Which clusters to start.  [default: as the file says]",
)
@click.option(
    "--master",
    help="Producers, consumers and scans as tasks of this Spark.  [default: as the file says, "
    "else processes of this machine]",
)
@click.option(
    "--canary-topic",
    metavar="NAME",
    help="A topic on somebody else's clusters that may be written to; the run makes none.",
)
@click.option("--allow-faults", is_flag=True, help="Also around somebody else's clusters.")
@click.option("--max-rate", type=COUNT, help="Messages per second, never more.")
@click.option("--max-bytes", type=SIZE, help="Of all messages together, never more.")
@click.option("--list", "is_list", is_flag=True, help="Show the presets.")
@click.option("--dry-run", is_flag=True, help="Check the file, say what would happen, and end.")
@runs_dir_option
@output_option
@console.outliving_readers()
def run(
    *,
    experiment: str | None,
    sets: tuple[str, ...],
    engine: str | None,
    master: str | None,
    is_list: bool,
    dry_run: bool,
    runs_dir: Path,
    output: str,
    **allowed: Any,
) -> ExitCode:
    """Run an experiment and judge it: clusters, mirror, faults and all.

    Ctrl-C once: nothing new is sent, what is on the way is drained, and it is judged as far as
    it went. Ctrl-C again: it ends at once; shoal audit judges what is there.

    \b
    shoal run --list
    shoal run mirror-correctness
    shoal run consistency --set producer.acks=1 --set source.engine=apache
    """
    from shoal.cli.shared.verdict import exit_code
    from shoal.experiment.faults.fault_injection import check
    from shoal.experiment.presets import find, presets
    from shoal.experiment.safety import guarded
    from shoal.experiment.spec import load_variants

    if is_list or experiment is None:
        for name, description in presets().items():
            console.out.print(f"{name:<22} {description}", markup=False)
        return ExitCode.PROVEN
    if master is not None:
        sets += (f"workers.master={master!r}",)
    leave = _leave(**allowed)
    specs = [guarded(spec, leave) for spec in load_variants(find(experiment), sets, engine=engine)]
    for spec in specs:
        check(spec)
    if dry_run:
        for spec in specs:
            console.out.print("\n".join(outline(spec)), markup=False)
        return ExitCode.PROVEN
    return exit_code((result.run, result) for result in _run_all(specs, runs_dir, output=output))


def _leave(
    *, canary_topic: str | None, allow_faults: bool, max_rate: int | None, max_bytes: int | None
) -> "Leave":
    from shoal.experiment.safety import Leave
    from shoal.experiment.spec import Caps

    caps = Caps(float(max_rate or 0), max_bytes or 0)
    return Leave(canary_topic, allow_faults=allow_faults, caps=caps)


def _run_all(specs: "list[ExperimentSpec]", runs_dir: Path, *, output: str) -> "list[Result]":
    """Every variant, on the clusters of the one before if it wants the same."""
    from shoal.cli.compare import show_side_by_side
    from shoal.experiment.faults.fault_injection import prepared
    from shoal.experiment.placing import Placing
    from shoal.experiment.runs import summarise

    done: list[Result] = []
    run_dirs: list[Path] = []
    with Placing(specs) as placing:
        for group in alike(specs):
            with prepared(group[0], report=_report_start) as ground:
                for spec in group:
                    run_dir = new_run_dir(runs_dir, spec.title).absolute()
                    result = run_one(spec, ground, placing, run_dir)
                    _show(result, spec, output=output, run_dir=run_dir)
                    done.append(result)
                    run_dirs.append(run_dir)
                    if summarise(run_dir).state == "interrupted":
                        return done  # the user has had enough
    if len(run_dirs) > 1 and output != "json":
        console.out.print()
        show_side_by_side(run_dirs, run_dirs[0].with_name(f"{run_dirs[0].name}-comparison.html"))
    return done


def alike(specs: "list[ExperimentSpec]") -> "list[list[ExperimentSpec]]":
    """Runs of variants that can share their clusters: faults leave nothing as it was."""
    groups: list[list[ExperimentSpec]] = []
    for spec in specs:
        before = groups[-1][-1] if groups else None
        is_alike = before and (before.clusters, before.zones) == (spec.clusters, spec.zones)
        if before and is_alike and not before.faults and not spec.faults:
            groups[-1].append(spec)
        else:
            groups.append([spec])
    return groups


def run_one(
    spec: "ExperimentSpec", ground: "Ground", placing: "Placing", run_dir: Path
) -> "Result":
    """One run on clusters that stand, judged; its folder is to be made."""
    from shoal.experiment.judge import run_experiment

    trouble = ground.trouble(spec)
    with watching() as watch:
        result = run_experiment(
            spec,
            addresses=ground.addresses(spec),
            run_dir=run_dir,
            session=placing.session,
            watch=watch,
            place=placing.place(),
            trouble=trouble,
        )
    for failure in trouble.failures:
        console.say(f"fault: {failure}", "bold yellow")
    return result


def _report_start(progress: "Start") -> None:
    if progress.step == progress.steps:
        console.say(f"  {progress.doing}: done")


def _show(result: "Result", spec: "ExperimentSpec", *, output: str, run_dir: Path) -> None:
    from shoal.cli.shared.verdict import show_verdict

    if output == "json":
        console.print_json(result.to_json())
        return
    if spec.variant:
        console.out.print(f"\n[bold]{spec.variant}[/]")
    show_verdict(result, run_dir)
    if len(result.groups) > 1:
        _show_groups(result)
    used = (result.mirror or {}).get("usage")
    if used:
        memory = format_bytes(used["peak_memory_bytes"])
        console.out.print(f"  mirror        {used['cpu_s']:.2f} CPU s, {memory} at most")


def _show_groups(result: "Result") -> None:
    """Each group by itself: above stands the worst."""
    from rich.table import Table

    from shoal.cli.shared.verdict import shown_owed

    table = Table("group", "verdict", "yield", "harvest", "duplication", "order", "p50", "p99")
    table.box = None
    for name, group in result.groups.items():
        m = group.metrics
        ratios = (m.yield_, m.harvest, m.duplication, m.order)
        shown = ["unknowable" if ratio is None else f"{ratio:.6g}" for ratio in ratios]
        latency = m.latency_us.get("e2e_intended")
        times = [shown_owed(latency, name) for name in ("p50", "p99")]
        table.add_row(name, group.verdict.value, *shown, *times)
    console.out.print(table)


def outline(spec: "ExperimentSpec") -> list[str]:
    """What will happen, a line for each party."""
    from shoal.experiment import plan

    lines = [f"{spec.name}: {spec.description}" if spec.description else spec.name]
    for role, cluster in spec.clusters.items():
        what = cluster.bootstrap or f"{cluster.brokers} brokers"
        version = f" {cluster.version}" if cluster.version else ""
        lines.append(f"  {role:<9} {cluster.engine}{version}, {what}")
    if spec.target:
        lines.append(f"  mirror    {spec.mirror.kind}, {spec.mirror.mode}, {spec.mirror.delivery}")
    topics, settings = spec.topics, plan.effective(spec)
    lines.append(
        f"  topics    {', '.join(topics.names)}: {topics.partitions} partitions, "
        f"{topics.replication_factor} replicas"
    )
    lasting = f"about {plan.planned_s(spec):.0f} s"
    sent = ", ".join(f"{key} {value}" for key, value in sorted(settings.items()))
    lines.append(f"  producers {spec.producers.count}, {lasting}: {sent}")
    lines.append(
        f"  consumers {spec.consumers.count} in each of {len(spec.consumers.groups)} groups"
    )
    if spec.workers.on_spark:
        lines.append(f"  workers   tasks of Spark on {spec.workers.master}")
    for (one, two), delay_ms in spec.zones.latency_ms.items():
        lines.append(f"  zones     {delay_ms:g} ms from {one} to {two}")
    if spec.faults:
        for fault in spec.faults.faults:
            when = f"at {fault.when.at_s:g} s"
            when += "" if fault.lasts_s is None else f" for {fault.lasts_s:g} s"
            lines.append(f"  fault     {fault.name} {fault.described_target} {when}")
    return lines
