"""Shoal proves what happens to every message that goes through Kafka and its mirrors."""

__version__ = "0.1.0"
