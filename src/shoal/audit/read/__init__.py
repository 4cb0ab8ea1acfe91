"""From run folders to the rows of one cell."""
