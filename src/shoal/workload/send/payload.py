"""What fills a message behind its identity: a pool of bytes that payloads are cut from.

    random              nothing that compression could find
    compressible:RATIO  compresses to about a RATIOth, with any codec
    file:PATH           the bytes of a file, over and over

Rules:
- Pieces are cut one after the other, so the pool is longer than any batch: no piece comes
  twice in one, and compression finds only what is meant to be found.
- The same settings give the same pool in every run.
"""

from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shoal.model.errors import UsageError

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

POOL_BYTES = 4 * 1024 * 1024
# Runs shorter than this cost a codec more than they save.
_LEAST_RANDOM_BYTES = 32
_LEAST_GRAIN_BYTES = 256
# What is left of the identity of a message when it is compressed.
_IDENTITY_BYTES = 45
_HIGHEST_RATIO = 1000.0
_REMEDY = "use random, compressible:RATIO (1 to 1000) or file:PATH"


class Payload(NamedTuple):
    """What to fill messages with."""

    kind: str
    ratio: float = 1.0
    path: str = ""


RANDOM = Payload("random")


def parse_payload(text: str) -> Payload:
    """Read what a user or an experiment says."""
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
    raise UsageError(f"{text!r:.80} is no payload", remedy=_REMEDY)


@cache
def payload_pool(payload: Payload, size_bytes: int) -> Bytes:
    """The pool; its last `size_bytes` are there to cut from."""
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
    """As much of a file as a pool holds."""
    try:
        with path.open("rb") as file:
            content = file.read(POOL_BYTES)
    except OSError as error:
        raise UsageError(
            f"payloads cannot be read from {path}: {error.strerror}", remedy="name a file"
        ) from error
    if not content:
        raise UsageError(f"payloads cannot be cut from {path}: it is empty", remedy="name another")
    return np.frombuffer(content, np.uint8)
