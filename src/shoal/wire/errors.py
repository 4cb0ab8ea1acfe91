"""Errors of decoding and encoding.

    WireError                     `shoal.model.errors`; `position` is where, in bytes
    ├── Truncated                 the bytes end before the end of what they announce
    ├── Malformed                 the bytes are invalid
    ├── LimitExceeded             the bytes may be valid, but exceed a limit of memory or count
    ├── CorruptBatch              a record batch contradicts its own checksum or header
    ├── UnsupportedCodec          a compression that Kafka does not define
    ├── UnsupportedVersion        an API key, or a version of it, without a schema
    └── Unencodable               the values to write have no form on the wire (local error)

Positions count from the start of what the caller passed in: a frame without its length,
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
    """The bytes end before the end of what they announce."""


class Malformed(WireError):
    """The bytes are complete, but invalid."""


class LimitExceeded(WireError):
    """The bytes exceed a limit of memory or count."""


class CorruptBatch(WireError):
    """A record batch that contradicts its own checksum or header."""


class UnsupportedCodec(WireError):
    """A compression that Kafka does not define, or that the build lacks."""


class UnsupportedVersion(WireError):
    """An API key, or a version of one, without a schema."""


class Unencodable(WireError):
    """The values to write have no form on the wire."""

    blame: Blame = "local"
