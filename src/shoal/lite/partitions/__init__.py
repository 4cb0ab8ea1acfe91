"""The replicas on one broker: their logs, who leads them, what may be written to them."""
