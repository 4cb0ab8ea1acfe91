"""Starts the clusters of an experiment, and gives their addresses."""

import contextlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from shoal.experiment.plan import Addresses
from shoal.experiment.spec import ClusterSpec, ExperimentSpec
from shoal.systems.apache.apache import ApacheCluster
from shoal.systems.apache.ivy import Report
from shoal.systems.clusters import AdvertisedPortOf, Cluster, make_cluster, no_report
from shoal.systems.external import ExternalCluster
from shoal.systems.lite import LiteSystem

_SERVERS = "bootstrap.servers"
_RACKS = "broker.rack"


@dataclass(frozen=True, slots=True)
class RunningClusters:
    """The running clusters by role, and their addresses."""

    clusters: Mapping[str, Cluster]
    addresses: Addresses


@contextmanager
def start_clusters(
    spec: ExperimentSpec,
    *,
    advertised_port_of: Mapping[str, AdvertisedPortOf] | None = None,
    report: Report = no_report,
) -> Iterator[RunningClusters]:
    """Start the clusters of an experiment, and stop them afterwards.

    `advertised_port_of` gives, by role, the ports that nodes advertise instead of their own.
    """
    with ExitStack() as stack:
        clusters: dict[str, Cluster] = {}
        for role, wanted in spec.clusters.items():
            made = _make_cluster(role, wanted, (advertised_port_of or {}).get(role), report)
            clusters[role] = stack.enter_context(made)
        target = clusters.get("target")
        addresses = Addresses(
            clusters["source"].bootstrap,
            None if target is None else target.bootstrap,
            {role: wanted.client for role, wanted in spec.clusters.items()},
            events={
                role: cluster.directory
                for role, cluster in clusters.items()
                if isinstance(cluster, LiteSystem)
            },
            nodes={role: cluster.nodes for role, cluster in clusters.items()},
        )
        yield RunningClusters(clusters, addresses)


def _make_cluster(
    role: str, spec: ClusterSpec, advertised_port_of: AdvertisedPortOf | None, report: Report
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
            advertised_port_of=advertised_port_of,
            report=report,
        )
    return make_cluster(
        spec.engine,
        brokers=spec.brokers,
        name=role,
        profile=spec.profile,
        controllers=spec.controllers,
        properties={**racks, **spec.properties},
        advertised_port_of=advertised_port_of,
    )
