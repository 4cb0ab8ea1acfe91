"""Injects the faults and zones of an experiment into its clusters and runs.

Rules:
- Impossible faults are refused before anything is started (`check`): targets that will not exist,
  faults on processes of an external cluster, links with encrypted traffic.
- With zones or link faults, every worker and the mirror connect through the proxy network. Scans
  and admin requests never do, so that a run can be judged in any state of its links.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

from shoal.experiment import plan
from shoal.experiment.faults.fault_targets import (
    ClusterAdmin,
    ClusterNodes,
    LiteNodeLinks,
    RunWorkers,
)
from shoal.experiment.faults.running_clusters import RunningClusters, start_clusters
from shoal.experiment.plan import Addresses
from shoal.experiment.spec import ExperimentSpec
from shoal.faults.executor import FaultRunner, Record
from shoal.faults.network import ProxyNetwork, refuse_encrypted_clients
from shoal.faults.targets import PlannedTargets, Targets
from shoal.faults.timeline import LINK_FAULTS, NODE_FAULTS, Fault
from shoal.model.errors import ConfigError, SystemFailure
from shoal.systems.apache.ivy import Report
from shoal.systems.clusters import AdvertisedPortOf, no_report
from shoal.systems.lite import LiteSystem
from shoal.systems.mirrors import Mirror
from shoal.workers.supervisor import WorkerSupervisor


def check(spec: ExperimentSpec) -> None:
    """Refuse faults and zones that are impossible in this experiment."""
    _list_targets(spec).check(spec.faults)
    for role, cluster in spec.clusters.items():
        if cluster.engine != "external":
            continue
        if needs_network(spec):
            refuse_encrypted_clients(role, cluster.client)
        for fault in spec.faults.faults:
            _check_external(role, fault)
    late = [fault for fault in spec.faults.faults if fault.when.at_s >= plan.send_duration_s(spec)]
    if late:
        raise ConfigError(
            f"{late[0].title} would start at {late[0].when.at_s:g} s, but all messages are "
            f"sent after {plan.send_duration_s(spec):g} s",
            remedy="send longer (producer.duration or producer.messages), or start it earlier",
        )


def _check_external(role: str, fault: Fault) -> None:
    hit = fault.target.partition("/")[0]
    if fault.name in NODE_FAULTS and hit == role:
        raise ConfigError(
            f"{fault.title} cannot affect {fault.target}: shoal did not start this cluster",
            remedy="use the engine lite or apache, or a fault of the links to it",
        )
    ends = (fault.sources, fault.targets)
    if fault.name in LINK_FAULTS and all(
        any(place.partition("/")[0] == role for place in end) for end in ends
    ):
        raise ConfigError(
            f"{fault.title} cannot affect {fault.described_target}: the links between brokers of "
            "an external cluster do not go through shoal's proxy",
            remedy="use the links of clients: producers, consumers, mirror",
        )


def needs_network(spec: ExperimentSpec) -> bool:
    return bool(spec.zones) or spec.faults.touches_links


def _list_targets(spec: ExperimentSpec) -> PlannedTargets:
    return PlannedTargets(
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


class Environment:
    """Running clusters, and the proxy network between them and their clients."""

    def __init__(self, running: RunningClusters, network: ProxyNetwork | None) -> None:
        self.running = running
        self.network = network

    def addresses(self, spec: ExperimentSpec) -> Addresses:
        """The addresses at which each worker and the mirror reach the clusters."""
        addresses, network = self.running.addresses, self.network
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
            (who, role): network.add_client(
                names, role, str(addresses.client_of(role)["bootstrap.servers"])
            )
            for who, role, names in parties
        }
        return replace(addresses, links=links)

    def fault_injection(
        self, spec: ExperimentSpec, *, on_fault: "OnFault | None" = None
    ) -> "FaultInjection":
        """The faults of one run; `on_fault` is called when one begins, ends or fails."""
        return FaultInjection(spec, self.running, self.network, on_fault=on_fault)


@contextmanager
def prepare_environment(
    spec: ExperimentSpec, *, report: Report = no_report
) -> Iterator[Environment]:
    """Start the clusters of an experiment, with a proxy network if it needs one."""
    with ExitStack() as stack:
        network = stack.enter_context(ProxyNetwork(spec.zones)) if needs_network(spec) else None
        advertised_port_of = {
            role: _proxy_port_of(network, role)
            for role, cluster in spec.clusters.items()
            if network is not None and cluster.engine == "apache"
        }
        running = stack.enter_context(
            start_clusters(spec, advertised_port_of=advertised_port_of, report=report)
        )
        for role, cluster in running.clusters.items():
            if network is not None and isinstance(cluster, LiteSystem):
                network.attach_nodes(role, LiteNodeLinks(cluster))
        yield Environment(running, network)


def _proxy_port_of(network: ProxyNetwork, role: str) -> AdvertisedPortOf:
    def choose_port(node_id: int, listener: str, port: int) -> int:
        # Each client gets a proxy of its own, by the addresses in Metadata responses.
        return port if listener == "clients" else network.open_broker_port(role, node_id, port)

    return choose_port


class FaultEvent(NamedTuple):
    """A fault began, ended or failed."""

    number: int
    name: str
    target: str
    phase: str  # "begin" or "end"
    after_s: float  # since the first message was due
    failed: str = ""  # why


OnFault = Callable[[FaultEvent], None]


class FaultInjection:
    """Injects the faults of one run: the `FaultHooks` of an experiment.

    With `is_on_demand` faults may also be injected while the run goes.
    """

    def __init__(
        self,
        spec: ExperimentSpec,
        running: RunningClusters,
        network: ProxyNetwork | None,
        *,
        on_fault: OnFault | None = None,
        is_on_demand: bool = False,
    ) -> None:
        self._is_on_demand = is_on_demand
        self._spec = spec
        self._on_fault = on_fault
        self._running = running
        self._network = network
        self._runner: FaultRunner | None = None

    @property
    def failures(self) -> list[str]:
        """Faults that failed; the commit log has them too."""
        return [] if self._runner is None else self._runner.failures

    def begin(self, started_us: int, workers: WorkerSupervisor, mirror: Mirror | None) -> None:
        """Start the timeline of faults at that time."""
        if not self._spec.faults and not self._is_on_demand:
            return
        self._runner = FaultRunner(
            self._spec.faults,
            self._targets(workers, mirror),
            self._recorder(workers.commit, started_us),
            until_s=plan.send_duration_s(self._spec),
        )
        self._runner.start(time.monotonic() + started_us / 1e6 - time.time())

    def _recorder(self, commit: Record, started_us: int) -> Record:
        """Commit lines about faults, and report each."""
        on_fault = self._on_fault
        if on_fault is None:
            return commit

        def record(line: dict[str, Any]) -> None:
            commit(line)
            on_fault(
                FaultEvent(
                    number=line["fault"],
                    name=line["name"],
                    target=line["target"],
                    phase=line["phase"],
                    after_s=(line["at_us"] - started_us) / 1e6,
                    failed=line["detail"].get("failed", ""),
                )
            )

        return record

    def inject(self, fault: Fault) -> Callable[[], None]:
        """Apply a fault now, and return how to end it; only between `begin` and `end`."""
        if self._runner is None:
            raise SystemFailure(f"{fault.title} cannot be injected: the run has not begun")
        return self._runner.inject(fault)

    def check(self) -> None:
        """Does nothing: the run continues without a failed fault, which is reported at the end."""

    def end(self) -> None:
        if self._runner is not None:
            self._runner.stop()

    def _targets(self, workers: WorkerSupervisor, mirror: Mirror | None) -> Targets:
        clusters, addresses = self._running.clusters, self._running.addresses
        return Targets(
            nodes={role: ClusterNodes(cluster) for role, cluster in clusters.items()},
            admins={role: ClusterAdmin(addresses.client_of(role)) for role in clusters},
            topics=self._spec.topics.names,
            workers=RunWorkers(workers),
            worker_names=_list_targets(self._spec).workers,
            mirror=mirror,
            links=self._network,
            copies={
                topic: plan.target_topic(self._spec.mirror, topic)
                for topic in self._spec.topics.names
            },
        )
