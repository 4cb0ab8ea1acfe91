"""The faults and zones of an experiment, on its clusters and in its runs.

Rules:
- What cannot be done is refused before anything is started (`check`): targets that will not be
  there, faults on the processes of somebody else, links that cannot be read.
- Where there are zones, or faults of links, every worker and the mirror go through the network;
  scans and administrators never do, so that a run can be read whatever has become of its links.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from shoal.experiment import plan
from shoal.experiment.faults.environment import Stage, standing
from shoal.experiment.faults.fault_targets import (
    ClusterAdmin,
    ClusterNodes,
    LiteNodeLinks,
    RunWorkers,
)
from shoal.experiment.plan import Addresses
from shoal.experiment.spec import ExperimentSpec
from shoal.faults.executor import FaultRunner
from shoal.faults.network import Network, refuse_encrypted
from shoal.faults.targets import Cast, Targets
from shoal.faults.timeline import LINK_FAULTS, NODE_FAULTS, Fault
from shoal.model.errors import ConfigError
from shoal.systems.apache.ivy import Report
from shoal.systems.clusters import Advertised, no_report
from shoal.systems.lite import LiteSystem
from shoal.systems.mirrors import Mirror
from shoal.workers.supervisor import Supervisor


def check(spec: ExperimentSpec) -> None:
    """Refuses faults and zones that this experiment cannot have."""
    _cast(spec).check(spec.faults)
    for role, cluster in spec.clusters.items():
        if cluster.engine != "external":
            continue
        if needs_network(spec):
            refuse_encrypted(role, cluster.client)
        for fault in spec.faults.faults:
            _check_external(role, fault)
    late = [fault for fault in spec.faults.faults if fault.when.at_s >= plan.planned_s(spec)]
    if late:
        raise ConfigError(
            f"{late[0].titled} would begin at {late[0].when.at_s:g} s, and everything is "
            f"sent after {plan.planned_s(spec):g} s",
            remedy="send longer (producer.duration or producer.messages), or let it begin earlier",
        )


def _check_external(role: str, fault: Fault) -> None:
    hit = fault.target.partition("/")[0]
    if fault.name in NODE_FAULTS and hit == role:
        raise ConfigError(
            f"{fault.titled} cannot hit {fault.target}: its processes are not ours",
            remedy="use the engine lite or apache, or hinder the links to it",
        )
    ends = (fault.sources, fault.targets)
    if fault.name in LINK_FAULTS and all(
        any(place.partition("/")[0] == role for place in end) for end in ends
    ):
        raise ConfigError(
            f"{fault.titled} cannot hinder {fault.described_target}: how the brokers of "
            "somebody else's cluster reach each other is not ours to change",
            remedy="hinder the links of clients: producers, consumers, mirror",
        )


def needs_network(spec: ExperimentSpec) -> bool:
    return bool(spec.zones) or spec.faults.touches_links


def _cast(spec: ExperimentSpec) -> Cast:
    return Cast(
        brokers={
            role: None if cluster.engine == "external" else cluster.brokers
            for role, cluster in spec.clusters.items()
        },
        workers={
            "producers": plan.producer_names(spec),
            "consumers": plan.consumer_names(spec),
        },
        groups=spec.consumers.groups,
        zones=spec.zones.names,
        topics=spec.topics.names,
        has_mirror=spec.target is not None and spec.mirror.kind != "external",
    )


class Ground:
    """Clusters that stand, and the network between them and everybody else."""

    def __init__(self, stage: Stage, network: Network | None) -> None:
        self.stage = stage
        self.network = network

    def addresses(self, spec: ExperimentSpec) -> Addresses:
        """How each party of a run reaches the clusters."""
        addresses, network = self.stage.addresses, self.network
        if network is None:
            return addresses
        parties: list[tuple[str, str, tuple[str, ...]]] = [
            (name, "source", (name, "producers")) for name in plan.producer_names(spec)
        ]
        read = addresses.clusters[-1]
        parties += [
            (name, read, (name, group, "consumers")) for name, group in plan.groups_of(spec).items()
        ]
        parties += [("mirror", role, ("mirror",)) for role in addresses.clusters]
        links = {
            (who, role): network.enter(
                names, role, str(addresses.client_of(role)["bootstrap.servers"])
            )
            for who, role, names in parties
        }
        return replace(addresses, links=links)

    def trouble(self, spec: ExperimentSpec) -> "Misfortune":
        return Misfortune(spec, self.stage, self.network)


@contextmanager
def prepared(spec: ExperimentSpec, *, report: Report = no_report) -> Iterator[Ground]:
    """The clusters of an experiment with their network, if it needs one."""
    with ExitStack() as stack:
        network = stack.enter_context(Network(spec.zones)) if needs_network(spec) else None
        advertised = {
            role: _advertised(network, role)
            for role, cluster in spec.clusters.items()
            if network is not None and cluster.engine == "apache"
        }
        stage = stack.enter_context(standing(spec, advertised=advertised, report=report))
        for role, cluster in stage.clusters.items():
            if network is not None and isinstance(cluster, LiteSystem):
                network.join(role, LiteNodeLinks(cluster))
        yield Ground(stage, network)


def _advertised(network: Network, role: str) -> Advertised:
    def advertised(node_id: int, listener: str, port: int) -> int:
        # Clients are led to proxies of their own, by the addresses in answers.
        return port if listener == "clients" else network.advertised(role, node_id, port)

    return advertised


class Misfortune:
    """What goes wrong on purpose in one run."""

    def __init__(self, spec: ExperimentSpec, stage: Stage, network: Network | None) -> None:
        self._spec = spec
        self._stage = stage
        self._network = network
        self._runner: FaultRunner | None = None

    @property
    def failures(self) -> list[str]:
        """Faults that could not be brought about; the commit log has them too."""
        return [] if self._runner is None else self._runner.failures

    def begin(self, started_us: int, workers: Supervisor, mirror: Mirror | None) -> None:
        """Play the timeline from that moment on."""
        if not self._spec.faults:
            return
        self._runner = FaultRunner(
            self._spec.faults,
            self._targets(workers, mirror),
            workers.commit,
            until_s=plan.planned_s(self._spec),
        )
        self._runner.start(time.monotonic() + started_us / 1e6 - time.time())

    def check(self) -> None:
        """A fault that failed is told at the end; the run goes on without it."""

    def end(self) -> None:
        if self._runner is not None:
            self._runner.stop()

    def _targets(self, workers: Supervisor, mirror: Mirror | None) -> Targets:
        clusters, addresses = self._stage.clusters, self._stage.addresses
        return Targets(
            nodes={role: ClusterNodes(cluster) for role, cluster in clusters.items()},
            admins={role: ClusterAdmin(addresses.client_of(role)) for role in clusters},
            topics=self._spec.topics.names,
            workers=RunWorkers(workers),
            worker_names=_cast(self._spec).workers,
            mirror=mirror,
            links=self._network,
            copies={
                topic: plan.target_topic(self._spec.mirror, topic)
                for topic in self._spec.topics.names
            },
        )
