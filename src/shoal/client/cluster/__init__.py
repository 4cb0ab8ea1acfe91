"""The metadata of the cluster, and the choice of the broker for each request."""
