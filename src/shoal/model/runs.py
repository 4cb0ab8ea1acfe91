"""What a run is called, in ledgers and inside messages.

Messages carry no names, only BLAKE2b with a digest of 8 bytes over the run's name. A consumer that
was not told the name knows its run by that number alone: `#` and 16 hexadecimal digits, which
is as good a name as the other wherever ledgers are joined.
"""

import re
from hashlib import blake2b

_BY_NUMBER = re.compile(r"#([0-9a-f]{16})")


def run_hash(run: str) -> int:
    """The number that stands for this run inside its messages."""
    if found := _BY_NUMBER.fullmatch(run):
        return int(found[1], 16)
    return int.from_bytes(blake2b(run.encode(), digest_size=8).digest(), "big")


def name_by_hash(number: int) -> str:
    """The name of a run of which only the number is known."""
    return f"#{number:016x}"


def is_by_hash(run: str) -> bool:
    return _BY_NUMBER.fullmatch(run) is not None
