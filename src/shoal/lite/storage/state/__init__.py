"""What follows from the batches of a log: producers, aborted transactions, leader epochs."""
