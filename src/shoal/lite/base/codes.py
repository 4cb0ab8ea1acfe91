"""How Kafka Lite refuses: with an error code, by Apache Kafka's names."""

from shoal.model.errors import Blame, ShoalError
from shoal.wire.error_codes import Code

__all__ = ["Code", "Refused"]


class Refused(ShoalError):
    """A request, or a part of one, that is answered with an error code; nothing was changed."""

    blame: Blame = "remote"

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code
