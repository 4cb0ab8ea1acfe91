"""The two ends of a replica's fetch session (KIP-227), without I/O."""
