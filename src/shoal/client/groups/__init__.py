"""Consumer groups: members, assignments, committed offsets."""
