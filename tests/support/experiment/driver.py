"""A driver in a process of its own, so that tests can kill it: runs one experiment on Kafka Lite.

`python experiment_driver.py RUN_DIR MESSAGES RATE [HOW [DRAIN_S]]` prints a line once two
seconds' worth of messages have arrived, so that some ledgers are sealed. HOW is `mirror` (the
default) or `group` (one cluster, two consumers that share a group, transactions).
"""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from shoal.experiment.plan import Addresses
from shoal.experiment.run import RunProgress, run_workload
from shoal.experiment.spec import ConsumersSpec, ExperimentSpec
from shoal.systems.clusters import make_cluster
from support.experiment.experiments import make_mirrored_spec, single


def main(run_dir: str, messages: str, rate: str, how: str = "mirror", drain_s: str = "3") -> None:
    has_reported = False

    def watch(progress: RunProgress) -> None:
        nonlocal has_reported
        if progress.received > 2 * float(rate) and not has_reported:
            has_reported = True
            sys.stdout.write("messages arrive\n")
            sys.stdout.flush()

    load = ("killed", int(messages), float(rate))
    with make_cluster("lite") as source, make_cluster("lite") as target:
        if how == "mirror":
            experiment = make_mirrored_spec(*load, drain_timeout_s=float(drain_s))
            addresses = Addresses(source.bootstrap, target.bootstrap)
        else:
            experiment = make_shared_spec(*load)
            addresses = Addresses(source.bootstrap)
        run_workload(experiment, addresses=addresses, run_dir=Path(run_dir), watch=watch)


def make_shared_spec(name: str, messages: int, rate: float) -> ExperimentSpec:
    wishes: dict[str, Any] = {
        "transaction_messages": 500,
        "abort_every": 5,
        "transaction_timeout_ms": 10_000,
    }
    spec = single(name, messages, rate, drain_timeout_s=60.0, **wishes)
    consumers = ConsumersSpec(
        2,
        settings={"in_group": True, "session_timeout_ms": 6_000},
        fetching={"isolation": "read_committed"},
    )
    return replace(spec, consumers=consumers)


if __name__ == "__main__":
    main(*sys.argv[1:])
