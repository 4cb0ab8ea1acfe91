"""`shoal generate`: writes the files that deploy Shoal to a folder."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import rich_click as click

from shoal import __version__
from shoal.cli.shared import console
from shoal.generate.cloud import PROVIDERS, generate_cloud
from shoal.generate.files import Files, write_files
from shoal.generate.plan import (
    BROKER_PORT,
    CONTROLLER_PORT,
    IMAGE,
    MAX_BROKERS,
    MAX_CONTROLLERS,
    METRICS_PORT,
    ClusterPlan,
    Host,
    MirrorPlan,
)
from shoal.model.errors import UsageError

Command = Callable[..., Any]


@click.group()
@click.command_panel(
    "Deployment", commands=["dockerfile", "compose", "kubernetes", "systemd", "cloud"]
)
@click.command_panel("Monitoring", commands=["prometheus", "alerts", "grafana"])
def generate() -> None:
    """Files that deploy Shoal and watch it: containers, Kubernetes, systemd, clouds, Prometheus.

    \b
    shoal generate dockerfile --out .
    shoal generate compose --out deploy
    shoal generate kubernetes --out deploy/kubernetes
    shoal generate systemd --hosts a@zone-1,b@zone-2,c@zone-3 --out deploy/hosts
    shoal generate cloud --provider aws --out deploy/aws
    shoal generate prometheus --cluster 127.0.0.1:9644 --out deploy/prometheus
    shoal generate grafana --out deploy/grafana
    """


def _add_options(command: Command, *options: Callable[[Command], Command]) -> Command:
    for option in reversed(options):
        command = option(command)
    return command


def _folder_options(command: Command) -> Command:
    return _add_options(
        command,
        click.option(
            "--out",
            "folder",
            type=click.Path(path_type=Path, file_okay=False),
            required=True,
            help="Folder for the files; it is created.",
        ),
        click.option("--force", is_flag=True, help="Replace files that differ."),
    )


def _mirror_options(command: Command) -> Command:
    return _add_options(
        command,
        click.option(
            "--mirror-source",
            metavar="HOST:PORT,…",
            help="A cluster from which a mirror copies into this one.",
        ),
        click.option(
            "--topics", default=".*", show_default=True, help="Topics that the mirror copies."
        ),
    )


def _name_option(command: Command) -> Command:
    help_text = "Name of the cluster; also its cluster id and namespace."
    return click.option("--name", default="shoal", show_default=True, help=help_text)(command)


def _cluster_options(command: Command) -> Command:
    return _add_options(
        command,
        _name_option,
        click.option(
            "--brokers", type=click.IntRange(1, MAX_BROKERS), default=3, show_default=True
        ),
        click.option(
            "--controllers", type=click.IntRange(1, MAX_CONTROLLERS), default=3, show_default=True
        ),
        click.option("--image", default=IMAGE, show_default=True, help="Container image."),
        _mirror_options,
    )


def _mirror_of(source: str | None, topics: str) -> MirrorPlan | None:
    return None if source is None else MirrorPlan(source, topics)


def _plan_of(given: dict[str, Any]) -> ClusterPlan:
    mirror = _mirror_of(given.pop("mirror_source"), given.pop("topics"))
    return ClusterPlan(**given, mirror=mirror)


def _write(files: Files, folder: Path, *, force: bool, next_step: str) -> None:
    for path in write_files(files, folder, replace=force):
        click.echo(str(path))
    for line in next_step.split("\n"):
        console.say(line)


@generate.command("dockerfile")
@_folder_options
def dockerfile_command(*, folder: Path, force: bool) -> None:
    """A Dockerfile that builds the image of this version from a checkout."""
    from shoal.generate.dockerfile import generate_dockerfile

    files = generate_dockerfile(
        version=__version__, broker_port=BROKER_PORT, controller_port=CONTROLLER_PORT
    )
    step = f"next, in a checkout: docker build -f {folder / 'Dockerfile'} -t {IMAGE} ."
    _write(files, folder, force=force, next_step=step)


@generate.command("compose")
@_folder_options
@_cluster_options
def compose_command(*, folder: Path, force: bool, **given: Any) -> None:
    """A compose file: controllers, brokers and, with --mirror-source, a mirror."""
    from shoal.generate.compose import generate_compose

    step = f"next: docker compose -f {folder / 'compose.yaml'} up -d --wait"
    _write(generate_compose(_plan_of(given)), folder, force=force, next_step=step)


@generate.command("kubernetes")
@_folder_options
@_cluster_options
def kubernetes_command(*, folder: Path, force: bool, **given: Any) -> None:
    """Manifests with kustomize overlays: a cluster, a mirror, a run as a Job, and Spark."""
    from shoal.generate.kubernetes import generate_kubernetes

    plan = _plan_of(given)
    step = (
        f"next: kubectl create namespace {plan.name}\n"
        f"      kubectl apply -k {folder / 'overlays' / 'production'}"
    )
    _write(generate_kubernetes(plan), folder, force=force, next_step=step)


@generate.command("systemd")
@_folder_options
@_name_option
@click.option(
    "--hosts",
    required=True,
    metavar="HOST[@ZONE],…",
    help="The machines, by the names that they reach each other by.",
)
@click.option(
    "--program",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where `shoal` is on the hosts.  [default: /opt/shoal/bin/shoal]",
)
@_mirror_options
def systemd_command(
    *,
    folder: Path,
    force: bool,
    name: str,
    hosts: str,
    program: Path | None,
    mirror_source: str | None,
    topics: str,
) -> None:
    """Units, a folder of configuration for each host, and a script that installs them."""
    from shoal.generate.systemd import PROGRAM, generate_systemd

    if program is not None and not program.is_absolute():
        raise UsageError(f"--program: {program} is a relative path", remedy="write it in full")
    files = generate_systemd(
        [Host.parse(text) for text in hosts.split(",")],
        name=ClusterPlan(name=name).name,
        program=PROGRAM if program is None else str(program),
        mirror=_mirror_of(mirror_source, topics),
    )
    step = f"next: copy {folder} to each host, and run there: sudo sh install.sh HOST"
    _write(files, folder, force=force, next_step=step)


@generate.command("cloud")
@_folder_options
@_name_option
@click.option("--provider", type=click.Choice(list(PROVIDERS)), required=True)
def cloud_command(*, folder: Path, force: bool, name: str, provider: str) -> None:
    """Scripts that create and delete one machine in each zone of AWS, GCP or Azure."""
    files = generate_cloud(provider, name=ClusterPlan(name=name).name)
    step = f"next: read {folder / 'settings.sh'}, then run: sh {folder / 'up.sh'} WHEEL"
    _write(files, folder, force=force, next_step=step)


def _split(addresses: str | None) -> list[str]:
    return [] if addresses is None else [each.strip() for each in addresses.split(",")]


@generate.command("prometheus")
@_folder_options
@_name_option
@click.option(
    "--cluster",
    "clusters",
    metavar="HOST:PORT,…",
    help="Metrics ports of the cluster.  [default: 127.0.0.1:9644, if nothing else is given]",
)
@click.option("--mirror", "mirrors", metavar="HOST:PORT,…", help="Metrics ports of mirrors.")
@click.option("--run", "runs", metavar="HOST:PORT,…", help="Metrics ports of runs.")
@click.option(
    "--token-file", default="", help="File with the token of the ports, where Prometheus runs."
)
def prometheus_command(
    *, folder: Path, force: bool, name: str, token_file: str, **given: str | None
) -> None:
    """A configuration of Prometheus that scrapes metrics ports, with the rules."""
    from shoal.generate.prometheus import ScrapePlan, generate_prometheus

    ports = {kind: _split(addresses) for kind, addresses in given.items()}
    if not any(ports.values()):
        ports["clusters"] = [f"127.0.0.1:{METRICS_PORT}"]
    plan = ScrapePlan(name, **ports, token_file=token_file)
    step = f"next: prometheus --config.file={folder / 'prometheus.yml'}"
    _write(generate_prometheus(plan), folder, force=force, next_step=step)


@generate.command("alerts")
@_folder_options
def alerts_command(*, folder: Path, force: bool) -> None:
    """Recording rules and alerts for a Prometheus that you have."""
    from shoal.generate.prometheus import RULES_FILE, generate_alerts

    step = f"next: add {folder / RULES_FILE} to rule_files of your Prometheus"
    _write(generate_alerts(), folder, force=force, next_step=step)


@generate.command("grafana")
@_folder_options
@click.option(
    "--prometheus-url",
    default="http://127.0.0.1:9090",
    show_default=True,
    help="Where Grafana reaches Prometheus.",
)
def grafana_command(*, folder: Path, force: bool, prometheus_url: str) -> None:
    """A dashboard, and the files by which Grafana finds it and its Prometheus."""
    from shoal.generate.prometheus import generate_grafana

    step = (
        f"next: put {folder / 'provisioning'} into /etc/grafana and {folder / 'dashboards'} into "
        "/var/lib/grafana, or import the dashboard in Grafana"
    )
    _write(generate_grafana(prometheus_url), folder, force=force, next_step=step)
