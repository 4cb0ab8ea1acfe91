"""The transaction coordinator: which producer owns a transactional id, and how transactions end.

    model        a transaction and its states
    records      its bytes in `__transaction_state`, in Apache Kafka's own format
    machine      requests in, decisions out; changed by committed records only
    coordinator  one partition of `__transaction_state`: writes decisions, ends transactions
    markers      sends the markers of ended transactions to the partitions' leaders
    service      a broker's access to its own coordinators and to those of other brokers

`model`, `records` and `machine` do no I/O.
"""
