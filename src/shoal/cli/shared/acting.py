"""Actions on clusters by commands: the same function as that of the page (`shoal.control`)."""

from shoal.cli.shared import console
from shoal.control.actions import Action, act
from shoal.systems import registry


def act_on_cluster(
    name: str | None,
    action: str,
    node: int | None = None,
    other: int | None = None,
    *,
    one_way: bool = False,
) -> None:
    """Act on the cluster with this name, or on the only one, and say what was done."""
    entry = registry.find(name)
    console.say(str(act(Action(f"cluster:{entry.name}", action, node, other, one_way))["done"]))
