"""Metrics by the names that public dashboards expect, made from Shoal's own."""
