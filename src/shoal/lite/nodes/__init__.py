"""The processes of a cluster: brokers, controllers, and the supervisor that owns them."""
