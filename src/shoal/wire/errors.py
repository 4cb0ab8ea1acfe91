"""What can be wrong with bytes.

    WireError                     `shoal.model.errors`; `position` is where, in bytes
    ├── Truncated                 the bytes end before the thing they announce
    ├── Malformed                 the bytes are there and cannot mean anything
    ├── LimitExceeded             they may mean something, but more than we are willing to hold
    ├── CorruptBatch              a record batch that contradicts its own checksum or header
    ├── UnsupportedCodec          compressed in a way that Kafka does not define
    ├── UnsupportedVersion        an API key or a version of it that we have no schema for
    └── Unencodable               what we were asked to write has no form on the wire; our fault

Positions count from the start of what the caller handed in: a frame without its length,
a record set, or a decompressed block.
"""

from shoal.model.errors import Blame, WireError

__all__ = [
    "CorruptBatch",
    "LimitExceeded",
    "Malformed",
    "Truncated",
    "Unencodable",
    "UnsupportedCodec",
    "UnsupportedVersion",
    "WireError",
]


class Truncated(WireError):
    """The bytes end before the thing that they announce."""


class Malformed(WireError):
    """The bytes are there and cannot mean anything."""


class LimitExceeded(WireError):
    """More than we are willing to hold or to count."""


class CorruptBatch(WireError):
    """A record batch that contradicts its own checksum or header."""


class UnsupportedCodec(WireError):
    """A compression that Kafka does not define, or that the build lacks."""


class UnsupportedVersion(WireError):
    """An API key, or a version of one, without a schema."""


class Unencodable(WireError):
    """What we were asked to write has no form on the wire."""

    blame: Blame = "local"
