"""The handshake of a new connection: API versions first, then SASL authentication.

Rules of this file:
- The handshake happens before the connection is used for anything else, one request at a time;
  the caller limits the time.
- If the broker refuses, `AuthenticationFailed` says what it offers instead.
- A SASL session that expires (KIP-368) is not renewed on the same connection: the pool opens
  another connection before `Link.expires_at`.
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
from shoal.client.transport.security import credentials_of, sasl_exchange
from shoal.client.transport.versions import BrokerVersions, Negotiation
from shoal.wire.api_keys import ApiKey
from shoal.wire.building import build
from shoal.wire.messages import decode_response, encode_request, request_class, response_class

# A session is replaced after this share of its lifetime, as in the Java client.
_SESSION_SHARE: Final = 0.85


@dataclass(slots=True)
class Link:
    """A connection that is ready for use, and the API versions of its broker."""

    connection: Connection
    versions: BrokerVersions
    client_id: str
    expires_at: float | None = None

    async def ask(
        self, api_key: int, version: int, values: Mapping[str, Any], *, timeout_s: float
    ) -> Any:
        """Send a request, given as field values, and return its response."""
        return await self.send(build(request_class(api_key, version), values), timeout_s=timeout_s)

    async def send(self, request: Any, *, timeout_s: float) -> Any:
        """Send a request message and return its response."""
        answer = await self.send_for_frame(request, timeout_s=timeout_s)
        cls = response_class(request.__api_key__, request.__version__)
        return decode_response(answer, cls)[1]

    async def send_for_frame(self, request: Any, *, timeout_s: float) -> memoryview:
        """Send a request message and return the frame of its response."""
        return await send_message(
            self.connection, request, client_id=self.client_id, timeout_s=timeout_s
        )


async def send_message(
    connection: Connection, request: Any, *, client_id: str, timeout_s: float
) -> memoryview:
    """Send a message; returns the frame of its response."""
    return await connection.request(
        lambda correlation_id: (
            encode_request(request, correlation_id=correlation_id, client_id=client_id),
        ),
        name=f"{ApiKey(request.__api_key__).name} v{request.__version__}",
        timeout_s=timeout_s,
    )


async def complete_handshake(connection: Connection, config: ClientConfig) -> Link:
    """Negotiate versions and authenticate."""
    timeout_s = config.connection_setup_timeout_ms / 1000
    versions = await _negotiate(connection, config, timeout_s)
    link = Link(connection, versions, config.client_id)
    if config.uses_sasl:
        await _authenticate(link, config, timeout_s)
    return link


async def _negotiate(
    connection: Connection, config: ClientConfig, timeout_s: float
) -> BrokerVersions:
    negotiation = Negotiation()
    software = {"client_software_name": "shoal", "client_software_version": __version__}
    while negotiation.result is None:
        request = build(request_class(ApiKey.API_VERSIONS, negotiation.request_version), software)
        answer = await send_message(
            connection, request, client_id=config.client_id, timeout_s=timeout_s
        )
        negotiation.on_response(answer)
    return negotiation.result


async def _authenticate(link: Link, config: ClientConfig, timeout_s: float) -> None:
    where = link.connection.address
    version = link.versions.newest(ApiKey.SASL_HANDSHAKE, at_least=1)
    offer = await link.ask(
        ApiKey.SASL_HANDSHAKE, version, {"mechanism": config.sasl_mechanism}, timeout_s=timeout_s
    )
    if offer.error_code == Code.UNSUPPORTED_SASL_MECHANISM:
        raise AuthenticationFailed(
            f"{where} does not offer sasl.mechanism={config.sasl_mechanism}, "
            f"only {', '.join(offer.mechanisms) or 'none'}",
            remedy="set sasl.mechanism to one of these",
        )
    if offer.error_code != Code.NONE:
        raise AuthenticationFailed(f"{where} refuses SASL: {error_for(offer.error_code)}")
    version = link.versions.newest(ApiKey.SASL_AUTHENTICATE)
    exchange = sasl_exchange(config.sasl_mechanism, credentials_of(config))
    token, lifetime_s = next(exchange), 0.0
    while True:
        answer = await link.ask(
            ApiKey.SASL_AUTHENTICATE, version, {"auth_bytes": token}, timeout_s=timeout_s
        )
        if answer.error_code != Code.NONE:
            reason = answer.error_message or str(error_for(answer.error_code))
            raise AuthenticationFailed(
                f"{where} refuses the authentication: {reason}",
                remedy="check sasl.username, sasl.password and sasl.mechanism",
            )
        if version >= 1:
            lifetime_s = answer.session_lifetime.total_seconds()
        try:
            token = exchange.send(bytes(answer.auth_bytes))
        except StopIteration:
            break
    if lifetime_s > 0:
        link.expires_at = asyncio.get_running_loop().time() + lifetime_s * _SESSION_SHARE
