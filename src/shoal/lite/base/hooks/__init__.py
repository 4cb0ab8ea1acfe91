"""Where faults and traces are attached to running nodes."""
