"""Actions on clusters by commands: the same function as that of the page (`shoal.control`)."""

from typing import Any

from shoal.cli.shared import console
from shoal.control.actions import Action, act
from shoal.control.clusters import find_entry


def act_on_cluster(
    name: str | None,
    action: str,
    node: int | None = None,
    other: int | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Act on the cluster with this name, or on the only one, and say what was done.

    Settings that are None or False are not given.
    """
    entry = find_entry(name)
    given = {key: value for key, value in settings.items() if value is not None}
    given = {key: value for key, value in given.items() if value is not False}
    answer = act(Action(f"cluster:{entry.name}", action, node, other, given))
    console.say(str(answer["done"]))
    return answer
