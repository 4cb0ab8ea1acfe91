"""How batches are delivered: one module for each promise."""
