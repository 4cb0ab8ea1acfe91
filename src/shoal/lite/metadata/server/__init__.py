"""The controller as a process sees it: port, quorum node, links of brokers to it."""
