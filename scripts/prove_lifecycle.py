"""Run the cells of the lifecycle matrix and write their outcomes to a report.

    python scripts/prove_lifecycle.py --report docs/proofs/lifecycle.md
    python scripts/prove_lifecycle.py --engine apache --report docs/proofs/lifecycle.md
    python scripts/prove_lifecycle.py --cells 'source-recreated,stopped' --cells 'target-*'

Runs all cells on Kafka Lite, and a pairwise cover of them on Apache Kafka. A filter of `--cells` is
a list of words, separated by commas, all of which a cell must have; filters may be repeated. Cells
with the same event at the same time run together; `--jobs` such groups run at once, each between
clusters of its own. With `--results FILE` an interrupted run is continued, and failed cells run
again; the report names them, and the code version of each cell. Exit code 1 if a cell has an
outcome that its event does not allow.

Cells are defined in tests/support/lifecycle/.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from support.lifecycle.proving import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
