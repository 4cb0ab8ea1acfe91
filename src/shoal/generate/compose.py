"""A compose file: controllers, brokers, and behind profiles a mirror and a shell for tests.

Each broker has its own port, inside and outside, so that clients in containers and clients on the
host (whose names for 127.0.0.1 include the brokers') use the addresses that brokers advertise.
"""

from typing import Any

from shoal.generate.files import Files, GeneratedFile
from shoal.generate.plan import (
    BROKER_PORT,
    CONTROLLER_PORT,
    METRICS_PORT,
    MIRROR_METRICS_PORT,
    STOP_GRACE_S,
    ClusterPlan,
    metrics_options,
)
from shoal.generate.prometheus import ScrapePlan, generate_scraping
from shoal.generate.yaml_text import to_yaml

_COMMENT = """\
docker compose up -d --wait                 the cluster, until every node is caught up
docker compose --profile mirror up -d       and the mirror, if one was generated
docker compose run --rm tools cluster --help
Clients on this machine need the names of the brokers: 127.0.0.1 {names}
A Prometheus in the network of this project scrapes it with prometheus/prometheus.yml."""


def generate_compose(plan: ClusterPlan) -> Files:
    """The file compose.yaml."""
    services = {
        **{f"controller-{i}": _controller(plan, i) for i in plan.controller_ids},
        **{f"broker-{i}": _broker(plan, i) for i in plan.broker_ids},
    }
    volumes: dict[str, Any] = {name: {} for name in services}
    if plan.mirror is not None:
        services["mirror"] = _mirror(plan)
        volumes["mirror"] = {}
    services["tools"] = _tools(plan)
    volumes["runs"] = {}
    document = {"name": plan.name, "services": services, "volumes": volumes}
    names = " ".join(f"broker-{i}" for i in plan.broker_ids)
    text = to_yaml(document, comment=_COMMENT.format(names=names))
    scraping = ScrapePlan(
        plan.name,
        [f"broker-{i}:{METRICS_PORT}" for i in plan.broker_ids],
        [] if plan.mirror is None else [f"mirror:{MIRROR_METRICS_PORT}"],
    )
    return {"compose.yaml": GeneratedFile(text), **generate_scraping(scraping)}


def bootstrap_of(plan: ClusterPlan) -> str:
    return ",".join(f"broker-{i}:{_port(i)}" for i in plan.broker_ids)


def _port(broker_id: int) -> int:
    return BROKER_PORT + 10 * (broker_id - 1)


def _controllers(plan: ClusterPlan) -> str:
    return ",".join(f"{i}@controller-{i}:{CONTROLLER_PORT}" for i in plan.controller_ids)


def _controller(plan: ClusterPlan, node_id: int) -> dict[str, Any]:
    return _node(plan, "controller", node_id, CONTROLLER_PORT)


def _broker(plan: ClusterPlan, node_id: int) -> dict[str, Any]:
    port = _port(node_id)
    waits = {f"controller-{i}": {"condition": "service_healthy"} for i in plan.controller_ids}
    node = _node(plan, "broker", node_id, port)
    return {
        **node,
        "command": [*node["command"], *metrics_options(METRICS_PORT)],
        "expose": [*node["expose"], str(METRICS_PORT)],
        "ports": [f"127.0.0.1:{port}:{port}"],
        "depends_on": waits,
    }


def _node(plan: ClusterPlan, kind: str, node_id: int, port: int) -> dict[str, Any]:
    name = f"{kind}-{node_id}"
    return {
        "image": plan.image,
        "command": [
            *(kind, "--id", str(node_id), "--dir", "/data"),
            *("--listen", f"0.0.0.0:{port}", "--advertise", name),
            *("--controllers", _controllers(plan), "--cluster-id", plan.name),
            *(word for line in plan.replication.properties for word in ("--property", line)),
        ],
        "expose": [str(port)],
        "volumes": [f"{name}:/data"],
        "healthcheck": {
            "test": ["CMD", "shoal", "ready", "--id", str(node_id), f"127.0.0.1:{port}"],
            "interval": "10s",
            "timeout": "10s",
            "retries": 6,
            "start_period": "120s",
            "start_interval": "2s",
        },
        "restart": "unless-stopped",
        "stop_grace_period": f"{STOP_GRACE_S}s",
    }


def _mirror(plan: ClusterPlan) -> dict[str, Any]:
    assert plan.mirror is not None  # noqa: S101 - for the type checker
    return {
        "image": plan.image,
        "profiles": ["mirror"],
        "command": [
            *("mirror", "run", "--name", plan.name),
            *("--source-bootstrap-server", plan.mirror.source),
            *("--target-bootstrap-server", bootstrap_of(plan)),
            *("--topics", plan.mirror.topics),
            *metrics_options(MIRROR_METRICS_PORT),
        ],
        "expose": [str(MIRROR_METRICS_PORT)],
        "environment": {"XDG_STATE_HOME": "/state"},
        "volumes": ["mirror:/state"],
        "depends_on": {f"broker-{i}": {"condition": "service_healthy"} for i in plan.broker_ids},
        "healthcheck": {
            "test": ["CMD", "shoal", "mirror", "status", "--name", plan.name, "--output", "json"],
            "interval": "15s",
            "timeout": "10s",
        },
        "restart": "unless-stopped",
    }


def _tools(plan: ClusterPlan) -> dict[str, Any]:
    return {
        "image": plan.image,
        "profiles": ["tools"],
        "environment": {"SHOAL_BOOTSTRAP": bootstrap_of(plan)},
        "volumes": ["runs:/runs"],
        "working_dir": "/runs",
    }
