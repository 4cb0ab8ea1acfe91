"""The payload of a message after its identity: slices of a pool of bytes.

    random              not compressible
    compressible:RATIO  compresses to about a RATIOth, with any codec
    file:PATH           the bytes of a file, repeated

Rules:
- Messages take successive slices. The pool is longer than any batch, so no slice occurs twice in a
  batch, and only the intended redundancy can be compressed.
- The same settings give the same pool in every run.
"""

from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shoal.model.errors import UsageError

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

POOL_BYTES = 4 * 1024 * 1024
# Shorter runs of random bytes cost a codec more than they save.
_LEAST_RANDOM_BYTES = 32
_LEAST_GRAIN_BYTES = 256
# The size of a message's identity after compression.
_IDENTITY_BYTES = 45
_HIGHEST_RATIO = 1000.0
_REMEDY = "use random, compressible:RATIO (1 to 1000) or file:PATH"


class Payload(NamedTuple):
    """The kind of payload, with its parameter."""

    kind: str
    ratio: float = 1.0
    path: str = ""


RANDOM = Payload("random")


def parse_payload(text: str) -> Payload:
    """Parse the setting `payload` of a command or an experiment."""
    kind, _, detail = text.partition(":")
    if text == "random":
        return RANDOM
    if kind == "file" and detail:
        return Payload(kind, path=detail)
    if kind == "compressible":
        try:
            ratio = float(detail)
        except ValueError:
            ratio = 0.0
        if 1 <= ratio <= _HIGHEST_RATIO:
            return Payload(kind, ratio)
    raise UsageError(f"{text!r:.80} is not a valid payload", remedy=_REMEDY)


@cache
def payload_pool(payload: Payload, size_bytes: int) -> Bytes:
    """The pool of bytes, longer than `POOL_BYTES` by one message."""
    length = POOL_BYTES + size_bytes
    if payload.kind == "file":
        return np.resize(_file_bytes(Path(payload.path)), length)
    pool = np.random.default_rng(size_bytes).integers(0, 256, length, np.uint8)
    if payload.kind == "compressible":
        packed = 1 / payload.ratio
        share = max(packed - (1 - packed) * _IDENTITY_BYTES / size_bytes, 0.0)
        grain = max(int(_LEAST_RANDOM_BYTES * payload.ratio), _LEAST_GRAIN_BYTES)
        pool[np.arange(length) % grain >= grain * share] = 0
    return pool


def _file_bytes(path: Path) -> Bytes:
    """The first bytes of a file, at most as many as a pool has."""
    try:
        with path.open("rb") as file:
            content = file.read(POOL_BYTES)
    except OSError as error:
        raise UsageError(
            f"cannot read payloads from {path}: {error.strerror}", remedy="give a readable file"
        ) from error
    if not content:
        raise UsageError(
            f"cannot take payloads from {path}: the file is empty", remedy="give another file"
        )
    return np.frombuffer(content, np.uint8)
