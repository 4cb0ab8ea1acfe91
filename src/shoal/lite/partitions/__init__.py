"""The replicas on one broker: their logs, their roles, and the checks before an append."""
