"""Record how Apache Kafka answers the requests of transactions in each state.

    python scripts/record_transaction_table.py

Writes `tests/interop/transaction_table.tsv`, with which tests/interop compares Kafka Lite. Run it
again for a new version of Apache Kafka, and review the difference. The implementation is in
tests/support/coordinator/transaction_table.py.
"""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from shoal.systems.apache.jars import NEWEST_KAFKA  # noqa: E402
from shoal.systems.clusters import ENGINES  # noqa: E402
from support.coordinator.transaction_table import BROKERS, PROPERTIES, play_table, write_table  # noqa: E402
from support.lite.engines import running_cluster  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", choices=ENGINES, default="apache")
    parser.add_argument(
        "--to", type=Path, default=ROOT / "tests" / "interop" / "transaction_table.tsv"
    )
    options = parser.parse_args()
    with running_cluster(options.engine, BROKERS, PROPERTIES) as cluster:
        table = play_table(cluster)
    engine = f"Apache Kafka {NEWEST_KAFKA}" if options.engine == "apache" else "Kafka Lite"
    command = "scripts/record_transaction_table.py"
    options.to.write_text(f"# {engine}, recorded by {command}\n{write_table(table)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
