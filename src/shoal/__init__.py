"""Shoal."""
