"""The shells of the controller: port, quorum node, and the links of brokers to it."""
