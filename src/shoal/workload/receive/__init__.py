"""Consumers and scans."""
