"""The points where faults and traces attach to running nodes."""
