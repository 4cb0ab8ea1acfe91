"""Negotiates the API versions that the broker and this client both support. Pure.

Rules of this file:
- The client first sends its newest ApiVersions request. A broker that does not know that version
  answers with error 35 in version 0 (KIP-511); then the client sends the newest version that the
  answer lists, or version 0.
- The transaction protocol is chosen by the finalised feature `transaction.version` (KIP-890),
  not by version numbers: a broker may know the new requests and still want the old protocol.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from struct import Struct
from typing import Final

from shoal.client.codes import Code
from shoal.client.errors import UnsupportedByBroker, error_for
from shoal.wire.api_keys import ApiKey
from shoal.wire.errors import Truncated, WireError
from shoal.wire.messages import decode_response, response_class, schema_versions

NEWEST_REQUEST_VERSION: Final = 4
TRANSACTION_FEATURE: Final = "transaction.version"

_ERROR_CODE: Final = Struct(">4xh")  # after the correlation id, in every version


@dataclass(frozen=True, slots=True)
class BrokerVersions:
    """The API versions and features of a broker."""

    ranges: Mapping[int, tuple[int, int]]
    supported_features: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    finalized_features: Mapping[str, int] = field(default_factory=dict)

    @property
    def transaction_version(self) -> int:
        return self.finalized_features.get(TRANSACTION_FEATURE, 0)

    def newest(self, api_key: int, *, at_least: int = 0, at_most: int | None = None) -> int:
        """The newest version that both sides support, within bounds."""
        name = ApiKey(api_key).name
        if api_key not in self.ranges:
            raise UnsupportedByBroker(f"the broker does not serve {name}")
        low, high = self.ranges[api_key]
        our_low, our_high = schema_versions(api_key)
        if at_most is not None:
            our_high = min(our_high, at_most)
        chosen = min(high, our_high)
        if chosen < max(low, our_low, at_least):
            raise UnsupportedByBroker(
                f"the broker serves {name} in versions {low} to {high}, "
                f"this client needs {max(our_low, at_least)} to {our_high}"
            )
        return chosen


class Negotiation:
    """The negotiation: send ApiVersions in `request_version` until `result` is set."""

    __slots__ = ("_answers", "request_version", "result")

    def __init__(self) -> None:
        self.request_version = NEWEST_REQUEST_VERSION
        self.result: BrokerVersions | None = None
        self._answers = 0

    def on_response(self, answer: memoryview) -> None:
        """Process an ApiVersions response."""
        if len(answer) < _ERROR_CODE.size:
            raise Truncated("an ApiVersions response without an error code", position=len(answer))
        self._answers += 1
        code = _ERROR_CODE.unpack_from(answer)[0]
        if code == Code.UNSUPPORTED_VERSION and self._answers == 1:
            self.request_version = _fallback(answer)
            return
        if code != Code.NONE:
            raise error_for(code, message="the broker refuses the ApiVersions request")
        self.result = _parse_response(answer, self.request_version)


def _fallback(answer: memoryview) -> int:
    """The newest version that an error response lists, or 0: some brokers list none."""
    try:
        listed = _parse_response(answer, 0).ranges.get(ApiKey.API_VERSIONS)
    except WireError:
        return 0
    return min(listed[1], NEWEST_REQUEST_VERSION - 1) if listed is not None else 0


def _parse_response(answer: memoryview, version: int) -> BrokerVersions:
    _, response = decode_response(answer, response_class(ApiKey.API_VERSIONS, version))
    ranges = {
        int(api.api_key): (int(api.min_version), int(api.max_version)) for api in response.api_keys
    }
    supported = {
        feature.name: (int(feature.min_version), int(feature.max_version))
        for feature in getattr(response, "supported_features", ())
    }
    finalized = {
        feature.name: int(feature.max_version_level)
        for feature in getattr(response, "finalized_features", ())
    }
    return BrokerVersions(ranges, supported, finalized)
