"""The units of generated files: pods of manifests, services of compose files, systemd units."""

import configparser
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from support.deploy.player import Unit

ZONE_LABEL = "topology.kubernetes.io/zone"
ZONES = ("zone-a", "zone-b", "zone-c")
Manifest = dict[str, Any]


# Kubernetes


def list_pods(documents: Iterable[Manifest]) -> list[Unit]:
    """The pods of the workloads among these documents, as Kubernetes would make them."""
    listed = list(documents)
    configs = {d["metadata"]["name"]: d["data"] for d in listed if d["kind"] == "ConfigMap"}
    services = [d for d in listed if d["kind"] == "Service"]
    pods = []
    for document in listed:
        if document["kind"] not in {"StatefulSet", "Deployment", "Job"}:
            continue
        count = document["spec"].get("replicas", 1)
        pods += [_pod(document, index, configs, services) for index in range(count)]
    return pods


def _pod(
    document: Manifest, index: int, configs: Mapping[str, Any], services: list[Manifest]
) -> Unit:
    template = document["spec"]["template"]
    namespace = document["metadata"].get("namespace", "default")
    name = f"{document['metadata']['name']}-{index}"
    labels = template["metadata"]["labels"] | {
        "apps.kubernetes.io/pod-index": str(index),
        ZONE_LABEL: ZONES[index % len(ZONES)],
    }
    [container] = template["spec"]["containers"]
    fields = {
        "metadata.name": name,
        "metadata.namespace": namespace,
        "status.podIP": "127.0.0.1",
        **{f"metadata.labels['{key}']": value for key, value in labels.items()},
    }
    environment = _environment(container, fields, configs)
    probe = container.get("readinessProbe", {})
    return Unit(
        name=f"{namespace}.{name}",
        command=[_expand(word, environment) for word in container["command"]],
        names=_names(document, name, namespace, services),
        environment=environment,
        ports=[port["containerPort"] for port in container.get("ports", ())],
        folders=_folders(template["spec"], document["spec"], container, configs),
        probe=probe.get("exec", {}).get("command", []),
        probe_port=probe.get("tcpSocket", {}).get("port"),
    )


def _environment(
    container: Manifest, fields: Mapping[str, str], configs: Mapping[str, Any]
) -> dict[str, str]:
    environment: dict[str, str] = {}
    for source in container.get("envFrom", ()):
        environment |= configs[source["configMapRef"]["name"]]
    for entry in container.get("env", ()):
        source = entry.get("valueFrom", {})
        if "fieldRef" in source:
            value = fields[source["fieldRef"]["fieldPath"]]
        elif "configMapKeyRef" in source:
            value = configs[source["configMapKeyRef"]["name"]][source["configMapKeyRef"]["key"]]
        else:
            value = entry["value"]
        assert isinstance(value, str), f"{entry['name']} is not text: {value!r}"
        environment[entry["name"]] = value
    return environment


def _expand(word: str, environment: Mapping[str, str]) -> str:
    """`$(NAME)`, as the kubelet expands it; a name that is not set would stay as it is."""
    expanded = re.sub(r"\$\((\w+)\)", lambda found: environment[found[1]], word)
    assert "$(" not in expanded
    return expanded


def _names(document: Manifest, name: str, namespace: str, services: list[Manifest]) -> list[str]:
    labels = document["spec"]["template"]["metadata"]["labels"]
    names = []
    for service in services:
        if service["spec"]["selector"].items() <= labels.items():
            own = service["metadata"]["name"]
            hosts = [own]
            if document["spec"].get("serviceName") == own:
                hosts.append(f"{name}.{own}")
            names += [f"{h}{tail}" for h in hosts for tail in ("", f".{namespace}.svc")]
    return names


def _folders(
    pod: Manifest, workload: Manifest, container: Manifest, configs: Mapping[str, Any]
) -> dict[str, dict[str, str]]:
    claims: dict[str, Manifest] = {
        claim["metadata"]["name"]: {} for claim in workload.get("volumeClaimTemplates", ())
    }
    volumes = claims | {volume["name"]: volume for volume in pod.get("volumes", ())}
    folders = {}
    for mount in container.get("volumeMounts", ()):
        volume = volumes[mount["name"]]
        files = configs[volume["configMap"]["name"]] if "configMap" in volume else {}
        folders[mount["mountPath"]] = files
    return folders


# Compose


def list_services(path: Path) -> list[Unit]:
    """The services of a compose file that has no profile, and the mirror."""
    document = yaml.safe_load(path.read_text())
    units = []
    for name, service in document["services"].items():
        if name == "tools":
            continue
        kind, *test = service["healthcheck"]["test"]
        assert kind == "CMD"
        units.append(
            Unit(
                name=name,
                # The entry point of the image.
                command=["shoal", *service["command"]],
                names=[name],
                environment=service.get("environment", {}),
                ports=[int(port) for port in service.get("expose", ())],
                folders={volume.partition(":")[2]: {} for volume in service["volumes"]},
                probe=test,
            )
        )
    return units


# systemd


def list_installed_units(folder: Path) -> list[Unit]:
    """One unit for each .properties file of each host."""
    units = []
    for config in sorted(folder.glob("*/*.properties")):
        kind, host = config.stem, config.parent.name
        parser = configparser.ConfigParser(interpolation=None, strict=False)
        parser.optionxform = str  # type: ignore[assignment,method-assign]
        parser.read(folder / f"shoal-{kind}.service")
        service = parser["Service"]
        settings = dict(
            line.split("=", 1) for line in config.read_text().splitlines() if "=" in line
        )
        state = f"/var/lib/{service['StateDirectory']}"
        port = [int(settings["listen"].rpartition(":")[2])] if "listen" in settings else []
        command = service["ExecStart"].split()
        ports = list(port)
        if "--metrics-port" in command:
            ports.append(int(command[command.index("--metrics-port") + 1]))
        units.append(
            Unit(
                name=f"{host}.{kind}",
                command=command,
                names=[host],
                environment=dict(word.split("=", 1) for word in service["Environment"].split()),
                ports=ports,
                folders={state: {}, "/etc/shoal": {config.name: config.read_text()}},
                probe=["shoal", "ready", "--id", settings["id"], f"127.0.0.1:{port[0]}"]
                if port
                else ["shoal", "mirror", "status"],
            )
        )
    return units
