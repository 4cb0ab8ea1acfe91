"""The names of the deliveries; docs/reference/mirror-delivery.md says what each guarantees."""

from typing import Final

AUTO: Final = "auto"
AT_LEAST_ONCE: Final = "at-least-once"
IDEMPOTENT: Final = "idempotent"
TRANSACTIONAL: Final = "transactional"
COMPARE_AND_APPEND: Final = "compare-and-append"

DELIVERIES: Final = (AUTO, AT_LEAST_ONCE, IDEMPOTENT, TRANSACTIONAL, COMPARE_AND_APPEND)
_EXACTLY_ONCE: Final = frozenset({IDEMPOTENT, TRANSACTIONAL, COMPARE_AND_APPEND})


def can_continue(wanted: str, used: str) -> bool:
    """Whether a mirror configured for one delivery can continue with the one it used before."""
    # Old records were delivered otherwise than by idempotent, with the same guarantee.
    return wanted in (used, AUTO) or (wanted == IDEMPOTENT and used in _EXACTLY_ONCE)
