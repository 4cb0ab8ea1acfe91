"""Functions of the user's that see every batch before it is sent.

A handler is called as `handler(partition, batch)` with the `TopicPartition` and the
`shoal.wire.batch.Batch` as the source stores it, compressed, and returns
- the same batch, to pass it on;
- None, to drop it;
- another batch, or the bytes of one (`shoal.wire.records.encode_batch` makes them), to send
  that instead. It must hold at least one record and have no gaps.
Batches of a partition come in order. Aborted and control batches do not come at all.
"""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

from shoal.model.errors import UsageError
from shoal.model.topics import TopicPartition
from shoal.wire.batch import Batch

Handled = Batch | bytes | bytearray | memoryview | None
BatchHandler = Callable[[TopicPartition, Batch], Handled]


def load_handler(name: str) -> BatchHandler:
    """The function that `module:function` names; modules of the current folder are found too."""
    module_name, colon, function_name = name.partition(":")
    if not colon or not module_name or not function_name:
        raise UsageError(f"{name!r} is not a handler", remedy="write it as module:function")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise UsageError(
            f"the handler's module {module_name} cannot be imported: {error}",
            remedy="install it, or run from the folder that holds it",
        ) from error
    handler = getattr(module, function_name, None)
    if not callable(handler):
        raise UsageError(f"{module_name} has no function {function_name}")
    return handler  # type: ignore[no-any-return]


def as_batch(handled: Batch | bytes | bytearray | memoryview) -> Batch:
    """What a handler returned, as a batch that may be edited."""
    view = handled.view if isinstance(handled, Batch) else memoryview(handled).cast("B")
    if view.readonly:
        view = memoryview(bytearray(view))
    return Batch(view)
