"""The error of a request: an error code, by Apache Kafka's names, and a message."""

from shoal.model.errors import Blame, ShoalError
from shoal.wire.error_codes import Code

__all__ = ["ApiError", "Code"]


class ApiError(ShoalError):
    """A request, or a part of one, is answered with an error code; it has changed nothing."""

    blame: Blame = "remote"

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code
