"""The controller inside a supervisor: a quorum of one, and a port for the brokers.

While the supervisor is down there are no elections and no changes of in-sync sets; but it sees
at once when a broker's process ends, so nobody waits for a session to time out.
"""

import logging
import secrets
from collections.abc import Mapping
from typing import TypeVar

from shoal.lite.cluster_folder import ClusterFolder
from shoal.lite.configs import Layers
from shoal.lite.controller.controller import ControllerSettings
from shoal.lite.controller.node import ControllerNode, format_alone
from shoal.lite.controller.requests import BrokersDied, Request
from shoal.lite.controller.server import ControllerServer
from shoal.lite.controller.state import ClusterState
from shoal.lite.spec import ControllerAddress

A = TypeVar("A")
CONTROLLER_ID = 100
_HOST = "127.0.0.1"
_logger = logging.getLogger(__name__)


class EmbeddedController:
    """A running controller."""

    def __init__(self, folder: ClusterFolder, properties: Mapping[str, str]) -> None:
        """Open the metadata of a cluster, or begin it."""
        format_alone(folder.metadata, CONTROLLER_ID)
        self._token = secrets.token_hex(16)
        self._server = ControllerServer(self._token)
        layers = Layers(dynamic={}, dynamic_default={}, static=properties)
        settings = ControllerSettings(
            session_timeout_ms=layers.integer("broker.session.timeout.ms"), properties=properties
        )
        self._node = ControllerNode(
            folder.metadata, folder.cluster_id, settings, send=self._server.send
        )

    @property
    def state(self) -> ClusterState:
        """What is committed; to be read only."""
        return self._node.state

    async def start(self) -> ControllerAddress:
        """Lead, forget the processes of a supervisor before this one, and serve brokers."""
        self._node.start()
        self.died(
            {
                broker.broker_id: broker.incarnation
                for broker in self.state.brokers.values()
                if not broker.shutting_down
            }
        )
        port = await self._server.start(_HOST, self._node)
        key = self._node.key
        return ControllerAddress(key.id, key.directory.hex, _HOST, port, self._token)

    def died(self, incarnations: Mapping[int, str]) -> None:
        """Processes have ended, by their brokers; what was seen together is told together."""
        if incarnations:
            # An alone controller commits at once; a refusal would be a bug, and shows in the log.
            future = self._node.submit(BrokersDied(dict(incarnations)))
            error = future.exception() if future.done() else None
            if error is not None:
                _logger.error("deaths of %s were not taken in: %s", list(incarnations), error)

    async def submit(self, request: Request[A]) -> A:
        """The answer, once what it is about is committed; `Refused` if it cannot be."""
        return (await self._node.submit(request)).answer

    def close(self) -> None:
        self._server.close()
        self._node.close()
