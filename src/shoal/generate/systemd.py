"""systemd units, and the configuration of each host.

The first hosts have a controller beside their broker: three of them, or one if there are fewer
than three hosts. Units are the same on all hosts; what differs is in the .properties files.
"""

from collections.abc import Sequence

from shoal.generate.files import Files, GeneratedFile
from shoal.generate.plan import (
    BROKER_PORT,
    CONTROLLER_PORT,
    METRICS_PORT,
    MIRROR_METRICS_PORT,
    STOP_GRACE_S,
    Host,
    MirrorPlan,
    Replication,
    metrics_options,
)
from shoal.generate.prometheus import ScrapePlan, generate_scraping
from shoal.model.errors import UsageError

PROGRAM = "/opt/shoal/bin/shoal"
MAX_HOSTS = 99
_FEWEST_FOR_QUORUM = 3
_UNIT = """\
[Unit]
Description=Shoal {kind}
Wants=network-online.target
After=network-online.target{after}

[Service]
Type=exec
User=shoal
Group=shoal
ExecStart={program} {command}
Environment=XDG_STATE_HOME=/var/lib/shoal NO_COLOR=1
StateDirectory=shoal
Restart=on-failure
RestartSec=2
TimeoutStopSec={grace_s}
LimitNOFILE=1048576
NoNewPrivileges=yes
PrivateTmp=yes
PrivateDevices=yes
ProtectSystem=strict
ProtectHome=read-only
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectControlGroups=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=yes

[Install]
WantedBy=multi-user.target
"""
_INSTALL = """\
#!/bin/sh
# Install Shoal's units and the configuration of one host. Run it as root on that host:
#   sh install.sh HOST
# Before: the program is at {program}.
set -eu
host="${{1:?usage: sh install.sh HOST, one of the folders beside this file}}"
cd "$(dirname "$0")"
[ -d "$host" ] || {{ echo "there is no folder $host beside $0" >&2; exit 1; }}
root="${{SHOAL_INSTALL_ROOT:-}}"
id shoal >/dev/null 2>&1 ||
  useradd --system --home-dir /var/lib/shoal --shell /usr/sbin/nologin shoal
install -d "$root/etc/shoal" "$root/etc/systemd/system"
install -m 0644 ./*.service "$root/etc/systemd/system/"
install -m 0644 "$host"/*.properties "$root/etc/shoal/"
systemctl daemon-reload
for file in "$host"/*.properties; do
  kind="$(basename "$file" .properties)"
  systemctl enable "shoal-$kind.service"
  systemctl start --no-block "shoal-$kind.service"
done
"""


def generate_systemd(
    hosts: Sequence[Host],
    *,
    name: str,
    program: str = PROGRAM,
    mirror: MirrorPlan | None = None,
) -> Files:
    """Units for all hosts, a folder of configuration for each, and a script that installs them."""
    _check_hosts(hosts)
    quorum = hosts[: _FEWEST_FOR_QUORUM if len(hosts) >= _FEWEST_FOR_QUORUM else 1]
    controllers = ",".join(
        f"{i}@{host.name}:{CONTROLLER_PORT}" for i, host in enumerate(quorum, start=101)
    )
    common = "".join(
        f"{line}\n"
        for line in (
            f"controllers={controllers}",
            f"cluster-id={name}",
            *Replication.of(len(hosts)).properties,
        )
    )
    files = {
        f"shoal-{kind}.service": GeneratedFile(_unit(kind, program))
        for kind in ("controller", "broker", *(("mirror",) if mirror is not None else ()))
    }
    for i, host in enumerate(hosts, start=1):
        if host in quorum:
            text = _node_text(host, 100 + i, "controller", CONTROLLER_PORT) + common
            files[f"{host.name}/controller.properties"] = GeneratedFile(text)
        rack = f"broker.rack={host.zone}\n" if host.zone else ""
        text = _node_text(host, i, "broker", BROKER_PORT) + common + rack
        files[f"{host.name}/broker.properties"] = GeneratedFile(text)
    if mirror is not None:
        # One mirror runs under a name: it is on the last host only.
        text = _mirror_text(hosts, name, mirror)
        files[f"{hosts[-1].name}/mirror.properties"] = GeneratedFile(text)
    scraping = ScrapePlan(
        name,
        [f"{host.name}:{METRICS_PORT}" for host in hosts],
        [] if mirror is None else [f"{hosts[-1].name}:{MIRROR_METRICS_PORT}"],
    )
    files |= generate_scraping(scraping)
    files["install.sh"] = GeneratedFile(_INSTALL.format(program=program), is_executable=True)
    return files


def _check_hosts(hosts: Sequence[Host]) -> None:
    if not 1 <= len(hosts) <= MAX_HOSTS:
        raise UsageError(f"--hosts: {len(hosts)} hosts", remedy=f"name 1 to {MAX_HOSTS} of them")
    names = [host.name for host in hosts]
    if len(set(names)) < len(names):
        raise UsageError("--hosts: a host is named twice", remedy="name each host once")


def _unit(kind: str, program: str) -> str:
    command = "mirror run" if kind == "mirror" else f"{kind} --config"
    ports = {"broker": METRICS_PORT, "mirror": MIRROR_METRICS_PORT}
    words = [command, f"/etc/shoal/{kind}.properties"]
    words += metrics_options(ports[kind]) if kind in ports else []
    return _UNIT.format(
        kind=kind,
        after="" if kind == "controller" else " shoal-controller.service",
        program=program,
        command=" ".join(words),
        grace_s=STOP_GRACE_S,
    )


def _node_text(host: Host, node_id: int, kind: str, port: int) -> str:
    return (
        f"id={node_id}\ndir=/var/lib/shoal/{kind}\nlisten=0.0.0.0:{port}\nadvertise={host.name}\n"
    )


def _mirror_text(hosts: Sequence[Host], name: str, mirror: MirrorPlan) -> str:
    target = ",".join(f"{host.name}:{BROKER_PORT}" for host in hosts)
    return (
        f"# A configuration file of MirrorMaker 2, which `shoal mirror run` reads as it is.\n"
        f"clusters=source,{name}\n"
        f"source.bootstrap.servers={mirror.source}\n"
        f"{name}.bootstrap.servers={target}\n"
        f"source->{name}.enabled=true\n"
        f"topics={mirror.topics}\n"
        f"replication.policy.class=org.apache.kafka.connect.mirror.IdentityReplicationPolicy\n"
    )
