"""How far the copy of a mirror is proven, in one line for each partition."""

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shoal.mirror.proof.files import PartitionProof


def describe_proof(proof: "PartitionProof") -> str:
    """As `proven equal up to offset 12, 3 seconds ago`."""
    where = proof.difference
    if where is not None:
        text = f"DIFFERENT at source {where.source_offset}, target {where.target_offset}: "
        text += where.what
        if proof.proven_offset >= 0:
            text += f"; equal before, up to offset {proof.proven_offset}"
        return text
    if proof.proven_offset < 0:
        text = "not proven yet"
    else:
        age_s = max(0, time.time_ns() // 1000 - proof.at_us) // 1_000_000
        text = f"proven equal up to offset {proof.proven_offset}, {age_s} seconds ago"
    return f"{text}; NOT COMPARED: {proof.unavailable}" if proof.unavailable else text
