"""Kubernetes manifests of a cluster: plain files, with kustomize overlays for two sizes.

    base/                    StatefulSets of controllers and brokers, services, disruption budgets
    overlays/small/          one controller, one broker, small disks
    overlays/production/     the planned numbers, zones that must differ, larger disks
    prometheus/              what a Prometheus in the Kubernetes cluster scrapes, for that size

Rules of this file:
- Node ids come from the ordinals of the pods: broker-N has id N, controller-N has id 10N.
- All pods of a set start at once, and are reachable before they are ready: the first start of the
  controllers needs all of them. Updates go one by one, each when the last pod is ready.
- A pod is ready when its node is caught up (`shoal ready`), so an update or a drain never takes
  a second replica away. There is no liveness probe: a node that waits for a controller would not
  gain from a restart, and one that fails ends.
- Kubernetes expands $(NAME) in a command, but not in a probe, which therefore is a shell line.
"""

import json
from typing import Any

from shoal.generate import kubernetes_jobs
from shoal.generate.files import Files, GeneratedFile
from shoal.generate.plan import (
    BROKER_PORT,
    CONTROLLER_PORT,
    METRICS_PORT,
    MIRROR_METRICS_PORT,
    STOP_GRACE_S,
    ClusterPlan,
    Replication,
    metrics_options,
)
from shoal.generate.prometheus import ScrapePlan, generate_scraping
from shoal.generate.yaml_text import to_yaml

ZONE_LABEL = "topology.kubernetes.io/zone"
USER_ID = 10001
_SIZES = {"small": "1Gi", "production": "100Gi"}
_PRODUCTION_RESOURCES = {
    "controllers": {"requests": {"cpu": "250m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}},
    "brokers": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "4Gi"}},
}
Manifest = dict[str, Any]


def generate_kubernetes(plan: ClusterPlan) -> Files:
    """All manifests, by their path."""
    base = {
        "cluster.yaml": [_cluster_config(plan)],
        "controllers.yaml": _node_set(plan, "controller", plan.controllers, CONTROLLER_PORT),
        "brokers.yaml": _node_set(plan, "broker", plan.brokers, BROKER_PORT),
    }
    files = {f"base/{name}": to_yaml(*documents) for name, documents in base.items()}
    files["base/kustomization.yaml"] = _kustomization(resources=list(base))
    files["overlays/small/kustomization.yaml"] = _small_overlay(plan)
    files["overlays/production/kustomization.yaml"] = _production_overlay(plan)
    for folder, documents in kubernetes_jobs.list_folders(plan).items():
        files[f"{folder}/{folder}.yaml"] = to_yaml(*documents)
        files[f"{folder}/kustomization.yaml"] = _kustomization(
            namespace=plan.name, resources=[f"{folder}.yaml"]
        )
    scraping = ScrapePlan(
        plan.name,
        [f"broker-{i}.brokers.{plan.name}.svc:{METRICS_PORT}" for i in range(plan.brokers)],
        [] if plan.mirror is None else [f"mirror.{plan.name}.svc:{MIRROR_METRICS_PORT}"],
    )
    manifests = {name: GeneratedFile(text) for name, text in files.items()}
    return {**manifests, **generate_scraping(scraping)}


def _cluster_config(plan: ClusterPlan) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "cluster"},
        "data": {
            "cluster-id": plan.name,
            "controllers": _controllers(plan.controllers),
            **_replication_data(plan.replication),
        },
    }


def _replication_data(replication: Replication) -> dict[str, str]:
    return {
        "replication-factor": str(replication.factor),
        "min-insync-replicas": str(replication.min_in_sync),
    }


def _controllers(count: int) -> str:
    return ",".join(f"10{i}@controller-{i}.controllers:{CONTROLLER_PORT}" for i in range(count))


def _node_set(plan: ClusterPlan, kind: str, count: int, port: int) -> list[Manifest]:
    labels = {"app.kubernetes.io/name": "shoal", "app.kubernetes.io/component": kind}
    service = kubernetes_jobs.make_headless_service(f"{kind}s", labels, _ports(kind, port))
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": f"{kind}s", "labels": labels},
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": labels}},
    }
    return [service, budget, _stateful_set(plan, kind, count, labels, port=port)]


def _ports(kind: str, port: int) -> list[tuple[str, int]]:
    return [(kind, port), *([("metrics", METRICS_PORT)] if kind == "broker" else ())]


def _stateful_set(
    plan: ClusterPlan, kind: str, count: int, labels: dict[str, str], *, port: int
) -> Manifest:
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": kind, "labels": labels},
        "spec": {
            "serviceName": f"{kind}s",
            "replicas": count,
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "terminationGracePeriodSeconds": STOP_GRACE_S,
                    "securityContext": {
                        "runAsNonRoot": True,
                        "runAsUser": USER_ID,
                        "fsGroup": USER_ID,
                        "fsGroupChangePolicy": "OnRootMismatch",
                    },
                    "topologySpreadConstraints": [
                        _spread(labels, ZONE_LABEL, "ScheduleAnyway"),
                        _spread(labels, "kubernetes.io/hostname", "ScheduleAnyway"),
                    ],
                    "containers": [_container(plan, kind, port)],
                },
            },
            "volumeClaimTemplates": [_claim("10Gi")],
        },
    }


def _spread(labels: dict[str, str], key: str, otherwise: str) -> Manifest:
    return {
        "maxSkew": 1,
        "topologyKey": key,
        "whenUnsatisfiable": otherwise,
        "labelSelector": {"matchLabels": labels},
    }


def _claim(size: str) -> Manifest:
    return {
        "metadata": {"name": "data"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": size}},
        },
    }


def _container(plan: ClusterPlan, kind: str, port: int) -> Manifest:
    ids = {"broker": "", "controller": "10"}
    rack = ["--property", "broker.rack=$(ZONE)"] if kind == "broker" else []
    return {
        "name": kind,
        "image": plan.image,
        "command": [
            *("shoal", kind, "--id", f"{ids[kind]}$(POD_INDEX)", "--dir", f"/data/{kind}"),
            *("--listen", f"0.0.0.0:{port}"),
            *("--advertise", f"$(POD_NAME).{kind}s.$(POD_NAMESPACE).svc"),
            *("--controllers", "$(CONTROLLERS)", "--cluster-id", "$(CLUSTER_ID)"),
            *("--property", "default.replication.factor=$(REPLICATION_FACTOR)"),
            *("--property", "min.insync.replicas=$(MIN_INSYNC_REPLICAS)"),
            *rack,
            *(metrics_options(METRICS_PORT) if kind == "broker" else ()),
        ],
        "env": [
            _field("POD_NAME", "metadata.name"),
            _field("POD_NAMESPACE", "metadata.namespace"),
            _field("POD_INDEX", "metadata.labels['apps.kubernetes.io/pod-index']"),
            *([_field("ZONE", f"metadata.labels['{ZONE_LABEL}']")] if rack else []),
            _setting("CONTROLLERS", "controllers"),
            _setting("CLUSTER_ID", "cluster-id"),
            _setting("REPLICATION_FACTOR", "replication-factor"),
            _setting("MIN_INSYNC_REPLICAS", "min-insync-replicas"),
        ],
        "ports": [{"name": n, "containerPort": number} for n, number in _ports(kind, port)],
        "readinessProbe": {
            "exec": {
                "command": [
                    "sh",
                    "-c",
                    f'exec shoal ready --id "{ids[kind]}$POD_INDEX" 127.0.0.1:{port}',
                ]
            },
            "periodSeconds": 10,
            "timeoutSeconds": 10,
            "failureThreshold": 3,
        },
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }


def _field(name: str, path: str) -> Manifest:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _setting(name: str, key: str) -> Manifest:
    return {"name": name, "valueFrom": {"configMapKeyRef": {"name": "cluster", "key": key}}}


# Kustomize


def _kustomization(**content: Any) -> str:
    return to_yaml(
        {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            **content,
        }
    )


def _small_overlay(plan: ClusterPlan) -> str:
    data = {"controllers": _controllers(1), **_replication_data(Replication.of(1))}
    changes = {f"/data/{key}": value for key, value in data.items()}
    disk = _disk_change(_SIZES["small"])
    patches = [
        _patch("ConfigMap", "cluster", changes),
        *(_patch("StatefulSet", kind, disk) for kind in ("controller", "broker")),
    ]
    return _kustomization(
        namespace=plan.name,
        resources=["../../base"],
        replicas=[{"name": "controller", "count": 1}, {"name": "broker", "count": 1}],
        patches=patches,
    )


def _production_overlay(plan: ClusterPlan) -> str:
    spread = "/spec/template/spec/topologySpreadConstraints/0/whenUnsatisfiable"
    patches = []
    for kind in ("controller", "broker"):
        changes = {
            spread: "DoNotSchedule",
            "/spec/template/spec/containers/0/resources": _PRODUCTION_RESOURCES[f"{kind}s"],
            **_disk_change("10Gi" if kind == "controller" else _SIZES["production"]),
        }
        patches.append(_patch("StatefulSet", kind, changes))
    return _kustomization(namespace=plan.name, resources=["../../base"], patches=patches)


def _disk_change(size: str) -> dict[str, Any]:
    return {"/spec/volumeClaimTemplates/0/spec/resources/requests/storage": size}


def _patch(kind: str, name: str, changes: dict[str, Any]) -> Manifest:
    """A patch that replaces values at their JSON pointers."""
    steps = [{"op": "replace", "path": path, "value": value} for path, value in changes.items()]
    return {
        "target": {"kind": kind, "name": name},
        "patch": json.dumps(steps, indent=2) + "\n",
    }
