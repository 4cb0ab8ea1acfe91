"""Reading: consumers, raw fetch, offsets, isolation."""
