"""Play the cells of the lifecycle matrix and write down what came of them.

    python scripts/prove_lifecycle.py --report docs/proofs/lifecycle.md
    python scripts/prove_lifecycle.py --engine apache --report docs/proofs/lifecycle.md
    python scripts/prove_lifecycle.py --cells 'source-recreated,stopped' --cells 'target-*'

All cells on Kafka Lite, a pairwise cover of them on Apache Kafka. A filter of `--cells` is a list
of words, separated by commas, all of which a cell must have; filters may be repeated. Cells of one
event at one time are played together; `--jobs` plays run at once, each between clusters of its
own. With `--results FILE` a run that was ended is continued, and cells that failed are played
again; the report names them, and the code that played each cell. Exit code 1 if a cell has an
outcome that its event does not allow.

What a cell is stands in tests/support/lifecycle/.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from support.lifecycle.proving import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
