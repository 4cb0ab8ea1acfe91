"""`shoal cluster`, its faults, and single nodes of a cluster on several hosts."""
