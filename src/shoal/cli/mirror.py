"""`shoal mirror`: copy topics from one cluster to another, batch by batch."""
