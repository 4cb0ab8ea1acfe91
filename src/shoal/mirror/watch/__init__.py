"""Watches source and target topics while a mirror copies, and decides what follows from changes."""
