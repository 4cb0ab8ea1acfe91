"""The replicas on one broker: their logs, their roles, and `admission`: what may be written."""
