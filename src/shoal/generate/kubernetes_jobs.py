"""Kubernetes manifests beside the cluster: a mirror, one run of an experiment, and Spark.

Each is a folder of its own (`kubectl apply -k mirror`), because not every cluster has them.
"""

from collections.abc import Sequence
from typing import Any

from shoal.generate.dockerfile import SPARK_JAVA_HOME
from shoal.generate.plan import (
    BROKER_PORT,
    MIRROR_METRICS_PORT,
    ClusterPlan,
    metrics_options,
)

BOOTSTRAP = f"broker-0.brokers:{BROKER_PORT}"
SPARK_PORT = 7077
SPARK_PAGE_PORT = 8080
_SOURCE = "source-cluster:9092"
_EXPERIMENT = f"""\
# What is sent through the cluster, and what is promised; see the guide "Experiments".
description = "the cluster in this namespace, end to end"

[source]
engine = "external"
bootstrap = "{BOOTSTRAP}"

[mirror]
kind = "none"

[topics]
name = "shoal-run"
partitions = 3

[producer]
rate = "500"
messages = "5k"
size = "512B"
acks = "all"

[promises]
delivery = "exactly_once"
order = true
"""
Manifest = dict[str, Any]


def list_folders(plan: ClusterPlan) -> dict[str, list[Manifest]]:
    """The documents of each folder."""
    return {"mirror": _mirror(plan), "run": _run(plan), "spark": _spark(plan)}


def _labels(component: str) -> dict[str, str]:
    return {"app.kubernetes.io/name": "shoal", "app.kubernetes.io/component": component}


def make_headless_service(
    name: str, labels: dict[str, str], ports: Sequence[tuple[str, int]]
) -> Manifest:
    """A service without an address of its own: its name is that of its pods, ready or not."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": labels,
            "ports": [{"name": each, "port": number} for each, number in ports],
        },
    }


def _pod(component: str, container: Manifest, **spec: Any) -> Manifest:
    return {
        "metadata": {"labels": _labels(component)},
        "spec": {
            "securityContext": {"runAsNonRoot": True, "runAsUser": 10001, "fsGroup": 10001},
            "containers": [
                {
                    "name": component,
                    **container,
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "capabilities": {"drop": ["ALL"]},
                    },
                }
            ],
            **spec,
        },
    }


def _deployment(name: str, count: int, pod: Manifest, **spec: Any) -> Manifest:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": _labels(name)},
        "spec": {
            "replicas": count,
            "selector": {"matchLabels": _labels(name)},
            **spec,
            "template": pod,
        },
    }


def _mirror(plan: ClusterPlan) -> list[Manifest]:
    """One mirror at a time runs under a name: the old pod ends before the new one starts."""
    wanted = plan.mirror
    config = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "mirror"},
        "data": {
            "SOURCE": _SOURCE if wanted is None else wanted.source,
            "TARGET": BOOTSTRAP,
            "TOPICS": ".*" if wanted is None else wanted.topics,
        },
    }
    container = {
        "image": plan.image,
        "command": [
            *("shoal", "mirror", "run", "--name", plan.name),
            *("--source-bootstrap-server", "$(SOURCE)"),
            *("--target-bootstrap-server", "$(TARGET)"),
            *("--topics", "$(TOPICS)"),
            *metrics_options(MIRROR_METRICS_PORT),
        ],
        "ports": [{"name": "metrics", "containerPort": MIRROR_METRICS_PORT}],
        "envFrom": [{"configMapRef": {"name": "mirror"}}],
        "env": [{"name": "XDG_STATE_HOME", "value": "/state"}],
        "readinessProbe": {
            "exec": {"command": ["shoal", "mirror", "status", "--name", plan.name]},
            "periodSeconds": 15,
            "timeoutSeconds": 10,
        },
        "resources": {"requests": {"cpu": "250m", "memory": "256Mi"}},
        "volumeMounts": [{"name": "state", "mountPath": "/state"}],
    }
    pod = _pod("mirror", container, volumes=[{"name": "state", "emptyDir": {}}])
    service = make_headless_service("mirror", _labels("mirror"), [("metrics", MIRROR_METRICS_PORT)])
    return [config, service, _deployment("mirror", 1, pod, strategy={"type": "Recreate"})]


def _run(plan: ClusterPlan) -> list[Manifest]:
    """An experiment on the cluster as a Job; its exit code is that of `shoal run`."""
    config = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "experiment"},
        "data": {"experiment.toml": _EXPERIMENT},
    }
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "runs"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "10Gi"}},
        },
    }
    container = {
        "image": plan.image,
        "command": ["shoal", "run", "/experiment/experiment.toml", "--runs-dir", "/runs"],
        "resources": {"requests": {"cpu": "1", "memory": "2Gi"}},
        "volumeMounts": [
            {"name": "experiment", "mountPath": "/experiment"},
            {"name": "runs", "mountPath": "/runs"},
        ],
    }
    volumes = [
        {"name": "experiment", "configMap": {"name": "experiment"}},
        {"name": "runs", "persistentVolumeClaim": {"claimName": "runs"}},
    ]
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "run", "labels": _labels("run")},
        "spec": {
            "backoffLimit": 0,
            "template": _pod("run", container, restartPolicy="Never", volumes=volumes),
        },
    }
    return [config, claim, job]


def _spark(plan: ClusterPlan) -> list[Manifest]:
    """A Spark master and its workers, for `shoal bench` and `--master spark://spark-master:7077`.

    The master's service has no address of its own: its name is that of the pod, to which Spark
    binds.
    """
    ports = [("master", SPARK_PORT), ("page", SPARK_PAGE_PORT)]
    service = make_headless_service("spark-master", _labels("spark-master"), ports)
    env = [
        {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "JAVA_HOME", "value": SPARK_JAVA_HOME},
    ]
    master = {
        "image": plan.image,
        "command": [
            *("spark-class", "org.apache.spark.deploy.master.Master"),
            *("--host", "$(POD_IP)", "--port", str(SPARK_PORT)),
            *("--webui-port", str(SPARK_PAGE_PORT)),
        ],
        "env": env,
        "ports": [
            {"name": "master", "containerPort": SPARK_PORT},
            {"name": "page", "containerPort": SPARK_PAGE_PORT},
        ],
        "readinessProbe": {"tcpSocket": {"port": SPARK_PORT}, "periodSeconds": 5},
    }
    worker = {
        "image": plan.image,
        "command": [
            *("spark-class", "org.apache.spark.deploy.worker.Worker"),
            *("--host", "$(POD_IP)", "--work-dir", "/work"),
            f"spark://spark-master:{SPARK_PORT}",
        ],
        "env": env,
        "resources": {"requests": {"cpu": "1", "memory": "2Gi"}},
        "volumeMounts": [{"name": "work", "mountPath": "/work"}],
    }
    work = [{"name": "work", "emptyDir": {}}]
    return [
        service,
        _deployment("spark-master", 1, _pod("spark-master", master)),
        _deployment("spark-worker", 2, _pod("spark-worker", worker, volumes=work)),
    ]
