"""From a bare connection to one that may be used: versions first, then who we are.

Rules of this file:
- Everything here happens before anyone else sees the connection, one request at a time; the
  caller bounds the time.
- A refusal by the broker is `AuthenticationFailed` and says what it offers instead.
- A SASL session that ends (KIP-368) is not renewed on the same connection: `Link.expires_at`
  tells the pool to open another one in time.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from shoal import __version__
from shoal.client.codes import Code
from shoal.client.config import ClientConfig
from shoal.client.errors import AuthenticationFailed, error_for
from shoal.client.transport.connection import Connection
from shoal.client.transport.security import conversation, credentials_of
from shoal.client.transport.versions import BrokerVersions, Negotiation
from shoal.wire.api_keys import ApiKey
from shoal.wire.building import build
from shoal.wire.messages import decode_response, encode_request, request_class, response_class

# A session is left after this part of its life, as Java's client does.
_SESSION_SHARE: Final = 0.85


@dataclass(slots=True)
class Link:
    """A connection ready for use, and what its broker can do."""

    connection: Connection
    versions: BrokerVersions
    client_id: str
    expires_at: float | None = None

    async def ask(
        self, api_key: int, version: int, values: Mapping[str, Any], *, timeout_s: float
    ) -> Any:
        """One request and its response, by field values."""
        return await self.send(build(request_class(api_key, version), values), timeout_s=timeout_s)

    async def send(self, request: Any, *, timeout_s: float) -> Any:
        """One request and its response, as messages."""
        answer = await send_message(
            self.connection, request, client_id=self.client_id, timeout_s=timeout_s
        )
        cls = response_class(request.__api_key__, request.__version__)
        return decode_response(answer, cls)[1]


async def send_message(
    connection: Connection, request: Any, *, client_id: str, timeout_s: float
) -> memoryview:
    """Send a message; returns the frame of its answer."""
    return await connection.request(
        lambda correlation_id: (
            encode_request(request, correlation_id=correlation_id, client_id=client_id),
        ),
        name=f"{ApiKey(request.__api_key__).name} v{request.__version__}",
        timeout_s=timeout_s,
    )


async def shake_hands(connection: Connection, config: ClientConfig) -> Link:
    """Agree on versions and log in."""
    timeout_s = config.connection_setup_timeout_ms / 1000
    versions = await _negotiate(connection, config, timeout_s)
    link = Link(connection, versions, config.client_id)
    if config.uses_sasl:
        await _log_in(link, config, timeout_s)
    return link


async def _negotiate(
    connection: Connection, config: ClientConfig, timeout_s: float
) -> BrokerVersions:
    negotiation = Negotiation()
    software = {"client_software_name": "shoal", "client_software_version": __version__}
    while negotiation.result is None:
        request = build(request_class(ApiKey.API_VERSIONS, negotiation.question), software)
        answer = await send_message(
            connection, request, client_id=config.client_id, timeout_s=timeout_s
        )
        negotiation.take(answer)
    return negotiation.result


async def _log_in(link: Link, config: ClientConfig, timeout_s: float) -> None:
    where = link.connection.address
    version = link.versions.newest(ApiKey.SASL_HANDSHAKE, at_least=1)
    offer = await link.ask(
        ApiKey.SASL_HANDSHAKE, version, {"mechanism": config.sasl_mechanism}, timeout_s=timeout_s
    )
    if offer.error_code == Code.UNSUPPORTED_SASL_MECHANISM:
        raise AuthenticationFailed(
            f"{where} does not offer sasl.mechanism={config.sasl_mechanism}, "
            f"but {', '.join(offer.mechanisms) or 'none'}",
            remedy="set sasl.mechanism to one that it offers",
        )
    if offer.error_code != Code.NONE:
        raise AuthenticationFailed(f"{where} refuses to log in: {error_for(offer.error_code)}")
    version = link.versions.newest(ApiKey.SASL_AUTHENTICATE)
    talk = conversation(config.sasl_mechanism, credentials_of(config))
    token, lifetime_s = next(talk), 0.0
    while True:
        answer = await link.ask(
            ApiKey.SASL_AUTHENTICATE, version, {"auth_bytes": token}, timeout_s=timeout_s
        )
        if answer.error_code != Code.NONE:
            said = answer.error_message or str(error_for(answer.error_code))
            raise AuthenticationFailed(
                f"{where} refuses the log-in: {said}",
                remedy="check sasl.username, sasl.password and sasl.mechanism",
            )
        if version >= 1:
            lifetime_s = answer.session_lifetime.total_seconds()
        try:
            token = talk.send(bytes(answer.auth_bytes))
        except StopIteration:
            break
    if lifetime_s > 0:
        link.expires_at = asyncio.get_running_loop().time() + lifetime_s * _SESSION_SHARE
