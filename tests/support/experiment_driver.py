"""A driver in a process of its own, so that tests can kill it: runs one experiment on Kafka Lite.

`python experiment_driver.py RUN_DIR MESSAGES RATE` prints a line once two seconds' worth
of messages have arrived, so that some ledgers are sealed.
"""

import sys
from pathlib import Path

from shoal.experiment.plan import Addresses
from shoal.experiment.run import Progress, run_workload
from shoal.systems.clusters import make_cluster
from support.experiments import mirrored


def main(run_dir: str, messages: str, rate: str) -> None:
    told = False

    def watch(progress: Progress) -> None:
        nonlocal told
        if progress.received > 2 * float(rate) and not told:
            told = True
            sys.stdout.write("messages arrive\n")
            sys.stdout.flush()

    experiment = mirrored("killed", int(messages), float(rate), drain_timeout_s=3.0)
    with make_cluster("lite") as source, make_cluster("lite") as target:
        addresses = Addresses(source.bootstrap, target.bootstrap)
        run_workload(experiment, addresses=addresses, run_dir=Path(run_dir), watch=watch)


if __name__ == "__main__":
    main(*sys.argv[1:])
