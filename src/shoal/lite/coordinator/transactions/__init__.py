"""The transaction coordinator: who may write under a transactional id, and how it ends.

    model        a transaction and its states
    records      its bytes in `__transaction_state`, in Apache Kafka's own format
    machine      requests in, decisions out; changed by committed records only
    coordinator  one partition of `__transaction_state`: writes decisions, ends transactions
    markers      brings the markers of ended transactions to the partitions' leaders
    service      a broker's way to coordinators, its own and those of others
    node_links   requests from broker to broker

`model`, `records` and `machine` do no input or output.
"""
