"""The promises of a run, by name, and the values that each may have.

The one list for experiment files, for `run.json` and for histories of other tools: a value that is
not in it is refused, since an unknown promise would be held against nothing.
"""

from typing import Final

PROMISES: Final = ("delivery", "order", "fidelity")
EXACTLY_ONCE: Final = "exactly_once"
PROMISED_DELIVERIES: Final = ("at_least_once", EXACTLY_ONCE)
FIDELITIES: Final = ("key", "headers", "payload", "partition", "timestamps", "bytes")
