"""Commands that deploy Shoal and ask whether its nodes are ready."""
