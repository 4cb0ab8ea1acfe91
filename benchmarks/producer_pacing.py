"""Claim: at 10,000 messages/s the 99th percentile of actual minus intended send is under 2 ms.

1 KiB messages, acks=all, to one broker of Kafka Lite on an idle machine, for 10 s. The first
second, in which much is loaded, does not count.

    python -m benchmarks.producer_pacing
"""

import sys

import numpy as np

from benchmarks.harness import Claim, store
from benchmarks.side_by_side import PARTITIONS, System, lite
from benchmarks.workload_loads import KIB, attempts_of, producer_spec

CLAIM = Claim(
    name="producer_pacing",
    sentence="At 10,000 messages/s the 99th percentile of the pacing error is under 2 ms.",
    packages=("numpy", "numba"),
)
PACE_PER_S = 10_000
PACED_S = 10
MOST_LATE_US = 2_000


def main() -> int:
    with lite(1) as cluster:
        system = System("Kafka Lite", cluster)
        messages = PACE_PER_S * (PACED_S + 1)
        spec = producer_spec(
            system.create_topic(1), PARTITIONS, messages, rate_per_s=float(PACE_PER_S)
        )
        attempts = attempts_of(system.bootstrap, spec)
    intended_us, sent_us = (attempts[name].to_numpy() for name in ("intended_us", "sent_us"))
    late_us = (sent_us - intended_us)[intended_us >= intended_us.min() + 1_000_000]
    percentiles = {f"p{q}_us": int(np.percentile(late_us, q)) for q in (50, 90, 99, 99.9)}
    print(f"{CLAIM.sentence}\n  pacing error: {percentiles}")
    conditions = {"messages": messages, "message_bytes": KIB, "messages_per_s": PACE_PER_S}
    holds = percentiles["p99_us"] < MOST_LATE_US
    return store(
        CLAIM, holds=holds, **percentiles, max_us=int(late_us.max()), conditions=conditions
    )


if __name__ == "__main__":
    sys.exit(main())
