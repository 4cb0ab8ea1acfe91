"""The life of source and target topics while a mirror copies: what changed, and what follows."""
