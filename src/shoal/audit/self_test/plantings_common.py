"""What plantings share: where to plant, and what a compacted topic excuses."""

from shoal.audit.self_test.world import Name, World, name_of


def any_message(world: World) -> Name | None:
    """Any message that is (still) in the logs and was delivered."""
    names = {name_of(line) for line in world.receipts}
    names &= {name_of(line) for line in world.logs[world.read]}
    names &= {name_of(line) for line in world.logs["source"]}
    names &= {name_of(line) for line in world.sends}
    return world.random.choice(sorted(names)) if names else None


def unless_superseded(world: World, *found: str) -> set[str]:
    """Where keys are compacted, a later message of the same key may excuse the absence."""
    return set() if any(scan["compacted"] for scan in world.scans) else set(found)
