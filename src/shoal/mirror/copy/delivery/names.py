"""The names of the deliveries; what each promises stands in docs/mirror-delivery.md."""

from typing import Final

AUTO: Final = "auto"
AT_LEAST_ONCE: Final = "at-least-once"
IDEMPOTENT: Final = "idempotent"
TRANSACTIONAL: Final = "transactional"
COMPARE_AND_APPEND: Final = "compare-and-append"

DELIVERIES: Final = (AUTO, AT_LEAST_ONCE, IDEMPOTENT, TRANSACTIONAL, COMPARE_AND_APPEND)
_EXACTLY_ONCE: Final = frozenset({IDEMPOTENT, TRANSACTIONAL, COMPARE_AND_APPEND})


def may_go_on(wanted: str, used: str) -> bool:
    """Whether a mirror that wants one delivery may go on with another that it used before."""
    # What idempotent gave way to for old records promises as much.
    return wanted in (used, AUTO) or (wanted == IDEMPOTENT and used in _EXACTLY_ONCE)
