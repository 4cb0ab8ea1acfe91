"""Names of runs, in ledgers and inside messages.

Messages carry no names, only the BLAKE2b hash of the run's name, 8 bytes long. A consumer that does
not know the name uses `#` and the hash as 16 hexadecimal digits; ledgers can be joined by either.
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
    """The name of a run of which only the hash is known."""
    return f"#{number:016x}"


def is_by_hash(run: str) -> bool:
    return _BY_NUMBER.fullmatch(run) is not None
