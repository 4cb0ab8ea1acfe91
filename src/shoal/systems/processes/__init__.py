"""Processes under test: they end with the process that started them, and are measured."""
