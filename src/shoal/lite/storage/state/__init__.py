"""State that follows from the batches of a log: producers, aborted transactions, epochs."""
