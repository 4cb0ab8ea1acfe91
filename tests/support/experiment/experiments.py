"""Small experiments on one cluster or two, for tests that run them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from shoal.experiment.spec import (
    ClusterSpec,
    ExperimentSpec,
    MirrorSpec,
    ProducersSpec,
    TopicsSpec,
)


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


def make_mirrored_spec(
    name: str, messages: int, rate_per_s: float, **settings: Any
) -> ExperimentSpec:
    """The same with a second cluster and our mirror between them."""
    spec = single(name, messages, rate_per_s, **settings)
    return replace(spec, target=ClusterSpec(), mirror=MirrorSpec("shoal"))
