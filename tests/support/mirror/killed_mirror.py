"""The command line of shoal, killed (SIGKILL) at one step of the way from old to young records.

    MIRROR_KILL_AT=STEP python -m support.mirror.killed_mirror mirror run …

`STEPS` says where each step is.
"""

import os
import signal
from collections.abc import Callable
from typing import Any, Final

from shoal.cli.main import run
from shoal.mirror.copy.delivery.idempotent import IdempotentDelivery
from shoal.mirror.copy.delivery.names import IDEMPOTENT
from shoal.mirror.run.checkpointer import Checkpointer
from shoal.mirror.run.resume import StartFinder
from shoal.mirror.run.transaction_session import TransactionWriter

KILL_AT: Final = "MIRROR_KILL_AT"
# By step: class, method, and whether the process is killed before or after it.
STEPS: Final[dict[str, tuple[type, str, bool]]] = {
    "batches are in an open transaction": (TransactionWriter, "_may_grow", True),
    "a transaction is committed": (TransactionWriter, "_await_visible", True),
    "a partition has caught up": (TransactionWriter, "_find_settled", True),
    "the last stable offset has passed": (TransactionWriter, "_find_settled", False),
    "the checkpoint is written": (TransactionWriter, "_write", False),
    "the checkpoint is committed": (TransactionWriter, "_leave", True),
    "the partition is released": (StartFinder, "find_starts", True),
    "the end of the target is read": (StartFinder, "find_starts", False),
    "the partition is claimed": (Checkpointer, "claim", False),
    "the first batch is written": (IdempotentDelivery, "on_acknowledged", True),
}


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_at(step: str) -> None:
    owner, name, is_before = STEPS[step]
    method: Callable[..., Any] = getattr(owner, name)

    def is_due(arguments: tuple[Any, ...]) -> bool:
        if name != "_write":
            return True
        return any(each.delivery == IDEMPOTENT for each in arguments[2].values())

    def before(*arguments: Any, **options: Any) -> Any:
        _kill()
        return method(*arguments, **options)

    async def after(*arguments: Any, **options: Any) -> Any:
        result = await method(*arguments, **options)
        if is_due(arguments):
            _kill()
        return result

    setattr(owner, name, before if is_before else after)


if __name__ == "__main__":
    kill_at(os.environ[KILL_AT])
    run()
