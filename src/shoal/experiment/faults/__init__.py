"""The running clusters of an experiment, and the faults injected into them."""
