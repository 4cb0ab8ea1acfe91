"""Small experiments on one cluster or two, for tests that run them."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from shoal.audit.folder import open_ledger
from shoal.audit.judge import audit
from shoal.experiment.run import run_workload
from shoal.experiment.spec import (
    ClusterSpec,
    ExperimentSpec,
    MirrorSpec,
    ProducersSpec,
    TopicsSpec,
)
from shoal.experiment.stage import Stage, standing
from shoal.model.result import Result


def single(
    name: str,
    messages: int,
    rate_per_s: float,
    *,
    partitions: int = 4,
    configs: Mapping[str, str] | None = None,
    **settings: Any,
) -> ExperimentSpec:
    """One cluster, one producer, one consumer."""
    sent = {
        "messages": messages,
        "rate_per_s": rate_per_s,
        "size_bytes": 512,
        "codec": "lz4",
        "drain_timeout_s": 60.0,
        **settings,
    }
    topics = TopicsSpec(
        name, partitions=partitions, target_partitions=partitions, configs=configs or {}
    )
    return ExperimentSpec(name, topics, ProducersSpec(1, sent))


def mirrored(name: str, messages: int, rate_per_s: float, **settings: Any) -> ExperimentSpec:
    """The same with a second cluster and our mirror between them."""
    spec = single(name, messages, rate_per_s, **settings)
    return replace(spec, target=ClusterSpec(), mirror=MirrorSpec("shoal"))


def played(spec: ExperimentSpec, run_dir: Path) -> Result:
    """Runs an experiment on clusters of its own and judges it, in this process."""
    with standing(spec) as stage:
        return played_on(stage, spec, run_dir)


def played_on(stage: Stage, spec: ExperimentSpec, run_dir: Path) -> Result:
    """The same on clusters that stand already."""
    run_workload(spec, addresses=stage.addresses, run_dir=run_dir, watch=lambda _progress: None)
    return audit(open_ledger([run_dir]))
