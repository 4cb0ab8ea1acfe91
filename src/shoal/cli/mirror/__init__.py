"""`shoal mirror` and its options."""
