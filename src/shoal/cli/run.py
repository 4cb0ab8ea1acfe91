"""`shoal run`: one experiment, from its file to its verdict."""

import threading
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from shoal.cli.shared import console
from shoal.cli.shared.browser import open_file, open_option
from shoal.cli.shared.complete import complete_experiment
from shoal.cli.shared.metrics_options import metrics_options, take_endpoint
from shoal.cli.shared.options import COUNT, LOCAL_RUNS, SIZE, output_option, runs_place_option
from shoal.cli.shared.placement import placement_option, placement_sets
from shoal.cli.shared.progress import make_runs_dir, new_run_dir, show_progress
from shoal.cli.shared.signals import answers_signals
from shoal.model.exit_codes import ExitCode
from shoal.model.run_folder import read_url
from shoal.model.units import format_bytes
from shoal.runtime.interrupts import explain_interrupt
from shoal.storage.places import join_place

if TYPE_CHECKING:
    from shoal.experiment.faults.fault_injection import Environment
    from shoal.experiment.metrics import RunMetrics
    from shoal.experiment.run import RunProgress
    from shoal.experiment.safety import Permissions
    from shoal.experiment.spec import ExperimentSpec
    from shoal.model.result import Result
    from shoal.pipeline.session import SessionFuture
    from shoal.systems.apache.ivy import StartProgress
    from shoal.telemetry.http_port import EndpointSpec


@click.command()
@click.argument(
    "experiment", required=False, metavar="FILE|PRESET", shell_complete=complete_experiment
)
@click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="KEY=VALUE",
    help="Set a key of the file; may be repeated.",
)
@click.option(
    "--engine",
    type=click.Choice(["lite", "apache"]),
    help="Engine of the clusters.  [default: as in the file]",
)
@placement_option
@click.option(
    "--master",
    help="Spark master of producers, consumers, scans and audit.  [default: as in the file, or "
    "else Spark on this machine]",
)
@click.option("--keep-ui", is_flag=True, help="Keep Spark's page open after the run, until Ctrl-C.")
@click.option(
    "--canary-topic",
    metavar="NAME",
    help="An existing topic on external clusters to write to; the run then creates none.",
)
@click.option("--allow-faults", is_flag=True, help="Allow faults with external clusters too.")
@click.option("--max-rate", type=COUNT, help="Maximum messages per second.")
@click.option("--max-bytes", type=SIZE, help="Maximum bytes of all messages together.")
@click.option(
    "--follow",
    is_flag=True,
    help="Print each finding as soon as it is certain (docs/guides/follow.md).",
)
@metrics_options
@click.option("--list", "is_list", is_flag=True, help="Show the presets.")
@click.option("--dry-run", is_flag=True, help="Check the file, show what would happen, and exit.")
@open_option
@runs_place_option
@output_option
@console.survive_closed_pipe()
@answers_signals()
def run(
    *,
    experiment: str | None,
    sets: tuple[str, ...],
    engine: str | None,
    placement: str | None,
    master: str | None,
    keep_ui: bool,
    is_list: bool,
    dry_run: bool,
    is_opening: bool,
    runs_dir: Path | str,
    output: str,
    **allowed: Any,
) -> ExitCode:
    """Run an experiment and judge it: clusters, mirror, faults and all.

    Ctrl-C once: nothing new is sent, messages on the way are drained, and the run is judged as far
    as it went. Ctrl-C again: the run ends at once; judge its ledgers with shoal audit.

    \b
    shoal run --list
    shoal run mirror-correctness
    shoal run consistency --set producer.acks=1 --set source.engine=apache
    """
    from shoal.cli.shared.verdict import exit_code
    from shoal.experiment.faults.fault_injection import check
    from shoal.experiment.metrics import RunMetrics, serve_run_metrics
    from shoal.experiment.presets import find, presets
    from shoal.experiment.safety import apply_permissions
    from shoal.experiment.spec import load_variants

    if is_list or experiment is None:
        for name, description in presets().items():
            console.print_line(f"{name:<22} {description}")
        return ExitCode.PROVEN
    sets += placement_sets(placement, master)
    follow = bool(allowed.pop("follow"))
    endpoint = take_endpoint(allowed)
    permissions = _permissions(**allowed)
    specs = [
        apply_permissions(spec, permissions)
        for spec in load_variants(find(experiment), sets, engine=engine)
    ]
    for spec in specs:
        check(spec)
    if dry_run:
        for spec in specs:
            for line in outline(spec):
                console.print_line(line)
        return ExitCode.PROVEN
    metrics = RunMetrics()
    with serve_run_metrics(endpoint, metrics, partial(_announce_metrics, endpoint)):
        results, page = _run_all(
            specs, runs_dir, metrics, output=output, keep_ui=keep_ui, follow=follow
        )
    if is_opening:
        open_file(page)
    return exit_code((result.run, result) for result in results)


def _announce_metrics(endpoint: "EndpointSpec | None", port: int) -> None:
    if endpoint is not None:
        console.say(f"metrics: http://{endpoint.host}:{port}/metrics")


def _permissions(
    *, canary_topic: str | None, allow_faults: bool, max_rate: int | None, max_bytes: int | None
) -> "Permissions":
    from shoal.experiment.safety import Permissions
    from shoal.experiment.spec import Caps

    caps = Caps(float(max_rate or 0), max_bytes or 0)
    return Permissions(canary_topic, allow_faults=allow_faults, caps=caps)


def _run_all(
    specs: "list[ExperimentSpec]",
    runs_dir: Path | str,
    metrics: "RunMetrics",
    *,
    output: str,
    keep_ui: bool,
    follow: bool,
) -> "tuple[list[Result], Path]":
    """Run every variant; one with the same clusters as the one before uses those.

    Returns the results, and the page about all of them.
    """
    from shoal.cli.compare import show_side_by_side
    from shoal.cli.shared.follow import following
    from shoal.experiment.faults.fault_injection import prepare_environment
    from shoal.experiment.placing import plan_session
    from shoal.experiment.runs import summarise
    from shoal.report.files import REPORT_FILE

    done: list[Result] = []
    run_dirs: list[Path] = []
    if isinstance(runs_dir, str):
        from shoal.experiment.ledgers.remote_run import require_writable

        require_writable(runs_dir)
    else:
        make_runs_dir(runs_dir)
    with plan_session(specs) as session:
        for group in group_by_clusters(specs):
            with prepare_environment(group[0], report=_report_start) as environment:
                for spec in group:
                    run_dir = _prepare_folder(runs_dir, spec.title)
                    metrics.begin(run_dir.name)
                    with following(run_dir, is_wanted=follow):
                        result = run_one(spec, environment, session, run_dir, metrics=metrics)
                    metrics.end(result)
                    _show(result, spec, output=output, run_dir=run_dir)
                    done.append(result)
                    run_dirs.append(run_dir)
                    if summarise(run_dir).state == "interrupted":
                        # The user interrupted it: skip the other variants.
                        return done, run_dir / REPORT_FILE
        if keep_ui:
            _keep_page(session)
    if len(run_dirs) > 1 and output != "json":
        console.out.print()
        page = run_dirs[0].with_name(f"{run_dirs[0].name}-comparison.html")
        show_side_by_side(run_dirs, page)
        return done, page
    return done, run_dirs[-1] / REPORT_FILE


def _prepare_folder(runs_dir: Path | str, title: str) -> Path:
    """Choose the folder of a run; if its ledgers go to another file system, it names the URL."""
    if isinstance(runs_dir, Path):
        return new_run_dir(runs_dir, title).absolute()
    from shoal.experiment.ledgers.remote_run import prepare_remote_run

    run_dir = new_run_dir(LOCAL_RUNS, title).absolute()
    prepare_remote_run(run_dir, join_place(runs_dir, run_dir.name))
    return run_dir


def _keep_page(session: "SessionFuture") -> None:
    page = session.result().sparkContext.uiWebUrl
    if page is None:
        console.say("this Spark has no page: only a local one has", "yellow")
        return
    console.say(f"Spark's page: {page} (until Ctrl-C)")
    with suppress(KeyboardInterrupt), explain_interrupt("closing Spark's page"):
        threading.Event().wait()


def group_by_clusters(specs: "list[ExperimentSpec]") -> "list[list[ExperimentSpec]]":
    """Group successive runs that can share clusters; a run with faults shares with none."""
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
    spec: "ExperimentSpec",
    environment: "Environment",
    session: "SessionFuture",
    run_dir: Path,
    *,
    metrics: "RunMetrics | None" = None,
) -> "Result":
    """Run one experiment on running clusters, and judge it; `run_dir` must not exist."""
    from shoal.experiment.judge import run_experiment

    with show_progress() as show:
        faults = environment.fault_injection(spec, on_fault=show.on_fault)

        def watch(step: "RunProgress") -> None:
            show(step)
            if metrics is not None:
                metrics.on_progress(step)

        result = run_experiment(
            spec,
            addresses=environment.addresses(spec),
            run_dir=run_dir,
            session=session,
            watch=watch,
            faults=faults,
        )
    for failure in faults.failures:
        console.say(f"fault failed: {failure}", "bold yellow")
    return result


def _report_start(progress: "StartProgress") -> None:
    if progress.step == progress.steps:
        console.say(f"  {progress.doing}: done")


def _show(result: "Result", spec: "ExperimentSpec", *, output: str, run_dir: Path) -> None:
    from shoal.cli.shared.verdict import show_verdict

    if output == "json":
        console.print_json(result.to_json())
        return
    if spec.variant:
        console.out.print()
        console.print_line((spec.variant, "bold"))
    show_verdict(result, run_dir)
    if url := read_url(run_dir):
        console.print_line(f"  ledgers       {url}")
    if len(result.groups) > 1:
        _show_groups(result)
    used = (result.mirror or {}).get("usage")
    if used:
        memory = format_bytes(used["peak_memory_bytes"])
        console.print_line(f"  mirror        {used['cpu_s']:.2f} CPU s, {memory} at most")


def _show_groups(result: "Result") -> None:
    """Print one line for each group; the verdict printed above is that of the worst group."""
    from shoal.cli.shared.verdict import format_owed_latency

    titles = ("group", "verdict", "yield", "harvest", "duplication", "order", "p50", "p99")
    table = console.SafeTable(*titles, box=None)
    for name, group in result.groups.items():
        m = group.metrics
        ratios = (m.yield_, m.harvest, m.duplication, m.order)
        shown = ["unknowable" if ratio is None else f"{ratio:.6g}" for ratio in ratios]
        latency = m.latency_us.get("e2e_intended")
        times = [format_owed_latency(latency, name) for name in ("p50", "p99")]
        table.add_row(name, group.verdict.value, *shown, *times)
    console.print_table(table)


def format_count(count: int, word: str) -> str:
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"


def _in_words(key: str, value: object) -> object:
    """A setting of producers as users write it in a file."""
    if key == "acks" and value in (-1, "-1"):
        return "all"
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else value


def outline(spec: "ExperimentSpec") -> list[str]:
    """What a run would do, one line for each part of it."""
    from shoal.experiment import plan

    lines = [f"{spec.name}: {spec.description}" if spec.description else spec.name]
    for role, cluster in spec.clusters.items():
        what = cluster.bootstrap or format_count(cluster.brokers, "broker")
        version = f" {cluster.version}" if cluster.version else ""
        lines.append(f"  {role:<9} {cluster.engine}{version}, {what}")
    if spec.target:
        lines.append(f"  mirror    {spec.mirror.kind}, {spec.mirror.mode}, {spec.mirror.delivery}")
    topics, settings = spec.topics, plan.apply_caps(spec)
    lines.append(
        f"  topics    {', '.join(topics.names)}: {format_count(topics.partitions, 'partition')}, "
        f"{format_count(topics.replication_factor, 'replica')}"
    )
    lasting = f"about {plan.send_duration_s(spec):.0f} s"
    sent = ", ".join(f"{key} {_in_words(key, value)}" for key, value in sorted(settings.items()))
    lines.append(f"  producers {spec.producers.count}, {lasting}: {sent}")
    lines.append(
        f"  consumers {spec.consumers.count} in each of "
        f"{format_count(len(spec.consumers.groups), 'group')}"
    )
    where = f"tasks of Spark on {spec.workers.master or 'this machine'}"
    lines.append(f"  workers   {where if spec.workers.on_spark else 'processes'}")
    for (one, two), delay_ms in spec.zones.latency_ms.items():
        lines.append(f"  zones     {delay_ms:g} ms from {one} to {two}")
    if spec.faults:
        for fault in spec.faults.faults:
            when = f"at {fault.when.at_s:g} s"
            when += "" if fault.lasts_s is None else f" for {fault.lasts_s:g} s"
            lines.append(f"  fault     {fault.name} {fault.described_target} {when}")
    return lines
