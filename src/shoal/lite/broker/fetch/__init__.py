"""Fetches of consumers and followers."""
