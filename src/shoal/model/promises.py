"""The promises of a run, by name, and the values that each may have.

The only list, for experiment files, `run.json` and histories of other tools. A value that is not in
it is refused, because no rule would check an unknown promise.
"""

from typing import Final

PROMISES: Final = ("delivery", "order", "fidelity")
EXACTLY_ONCE: Final = "exactly_once"
PROMISED_DELIVERIES: Final = ("at_least_once", EXACTLY_ONCE)
FIDELITIES: Final = ("key", "headers", "payload", "partition", "timestamps", "bytes")
