"""The clusters of an experiment, standing, and where each of its parties finds them."""

import contextlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from shoal.experiment.plan import Addresses
from shoal.experiment.spec import ClusterSpec, ExperimentSpec
from shoal.systems.apache.apache import ApacheCluster
from shoal.systems.apache.ivy import Report
from shoal.systems.clusters import Advertised, Cluster, make_cluster, no_report
from shoal.systems.external import ExternalCluster

_SERVERS = "bootstrap.servers"
_RACKS = "broker.rack"


@dataclass(frozen=True, slots=True)
class Stage:
    """The clusters by role, and how to reach them."""

    clusters: Mapping[str, Cluster]
    addresses: Addresses


@contextmanager
def standing(
    spec: ExperimentSpec,
    *,
    advertised: Mapping[str, Advertised] | None = None,
    report: Report = no_report,
) -> Iterator[Stage]:
    """Starts the clusters, all at the same time if they are ours, and ends them afterwards.

    `advertised` says, by role, which ports nodes advertise instead of their own.
    """
    with ExitStack() as stack:
        clusters: dict[str, Cluster] = {}
        for role, wanted in spec.clusters.items():
            made = _made(role, wanted, (advertised or {}).get(role), report)
            clusters[role] = stack.enter_context(made)
        target = clusters.get("target")
        addresses = Addresses(
            clusters["source"].bootstrap,
            None if target is None else target.bootstrap,
            {role: wanted.client for role, wanted in spec.clusters.items()},
        )
        yield Stage(clusters, addresses)


def _made(
    role: str, spec: ClusterSpec, advertised: Advertised | None, report: Report
) -> contextlib.AbstractContextManager[Cluster]:
    if spec.engine == "external":
        return ExternalCluster(role, spec.bootstrap or spec.client[_SERVERS])
    racks = {_RACKS: ",".join(spec.racks)} if spec.racks else {}
    if spec.engine == "apache":
        return ApacheCluster(
            brokers=spec.brokers,
            name=role,
            version=spec.version,
            zookeepers=spec.zookeepers,
            properties={**racks, **spec.properties},
            advertised=advertised,
            report=report,
        )
    return make_cluster(
        spec.engine,
        brokers=spec.brokers,
        name=role,
        profile=spec.profile,
        controllers=spec.controllers,
        properties={**racks, **spec.properties},
        advertised=advertised,
    )
