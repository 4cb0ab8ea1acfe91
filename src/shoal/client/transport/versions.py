"""Which versions of which requests a broker and we both speak. Pure.

Rules of this file:
- We ask with our newest ApiVersions. A broker that does not know that version answers error
  35 in the form of version 0 (KIP-511); then we ask once more, with the newest one that the
  answer lists, or with 0.
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
from shoal.wire.messages import decode_response, known_versions, response_class

NEWEST_QUESTION: Final = 4
TRANSACTION_FEATURE: Final = "transaction.version"

_ERROR_CODE: Final = Struct(">4xh")  # behind the correlation id, in every version


@dataclass(frozen=True, slots=True)
class BrokerVersions:
    """What a broker can do."""

    ranges: Mapping[int, tuple[int, int]]
    supported_features: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    finalized_features: Mapping[str, int] = field(default_factory=dict)

    @property
    def transaction_version(self) -> int:
        return self.finalized_features.get(TRANSACTION_FEATURE, 0)

    def newest(self, api_key: int, *, at_least: int = 0, at_most: int | None = None) -> int:
        """The newest version that both sides speak, within bounds."""
        name = ApiKey(api_key).name
        if api_key not in self.ranges:
            raise UnsupportedByBroker(f"the broker does not serve {name}")
        low, high = self.ranges[api_key]
        our_low, our_high = known_versions(api_key)
        if at_most is not None:
            our_high = min(our_high, at_most)
        chosen = min(high, our_high)
        if chosen < max(low, our_low, at_least):
            raise UnsupportedByBroker(
                f"the broker serves {name} in versions {low} to {high}, "
                f"we need {max(our_low, at_least)} to {our_high}"
            )
        return chosen


class Negotiation:
    """The conversation about versions: `question` is the version to ask with, until `result`."""

    __slots__ = ("_asked", "question", "result")

    def __init__(self) -> None:
        self.question = NEWEST_QUESTION
        self.result: BrokerVersions | None = None
        self._asked = 0

    def take(self, answer: memoryview) -> None:
        """Take in an answer to the question."""
        if len(answer) < _ERROR_CODE.size:
            raise Truncated("an ApiVersions answer without an error code", position=len(answer))
        self._asked += 1
        code = _ERROR_CODE.unpack_from(answer)[0]
        if code == Code.UNSUPPORTED_VERSION and self._asked == 1:
            self.question = _fallback(answer)
            return
        if code != Code.NONE:
            raise error_for(code, message="the broker refuses to tell its versions")
        self.result = _parsed(answer, self.question)


def _fallback(answer: memoryview) -> int:
    """The newest version that a refusal lists; some brokers list nothing that can be read."""
    try:
        listed = _parsed(answer, 0).ranges.get(ApiKey.API_VERSIONS)
    except WireError:
        return 0
    return min(listed[1], NEWEST_QUESTION - 1) if listed is not None else 0


def _parsed(answer: memoryview, version: int) -> BrokerVersions:
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
