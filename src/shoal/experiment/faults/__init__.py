"""The clusters of an experiment as an environment, and the faults injected into it."""
