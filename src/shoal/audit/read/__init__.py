"""Reads run folders into the rows of one cell."""
