"""Compares the logs of a source and a target: once, or continuously while a mirror runs."""
