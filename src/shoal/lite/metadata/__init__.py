"""The metadata of a cluster: a log of records, and the controller that decides about it.

    records       the records, and their bytes
    state         records in, state out; the same at controllers and brokers
    requests      the requests to a controller, and its answers
    controller    the active controller: requests and time in, records and answers out
    partitions    leader, in-sync replicas and eligible leader replicas: the one place that decides
    brokers       registration, fencing, the boot rule, controlled shutdown
    in_sync       proposals of leaders
    leaders       elections on request, and balancing of leaderships
    reassignment  moving partitions to other replicas
    placement     which brokers get replicas
    commands      topics, settings, producer ids
    recoveries    unclean elections under way
    sessions      which brokers are alive
    status        why a partition is offline, for users
    profiles      how many replicas must have a record before it is acknowledged
    founding      how controllers that are started one by one agree on the voters

The shells, which have clocks, disks and sockets:

    node          a member of the quorum, and the active controller while it leads
    host          a node with its port: `port` takes frames, `request_dispatcher` answers them
    peers         Raft requests to controllers
    link          a broker's side: follows the metadata, asks for changes
    joining       how a controller becomes a voter

    rpc, values   requests to a controller as Apache Kafka's requests and responses
    quorum_admin  requests of clients about the quorum

Everything else is pure: no clock, no disk, no network, no randomness. The rules are Apache Kafka's:
KIP-631 (brokers and controllers), 497 (AlterPartition), 841 and 903 (which replicas may be in
sync), 966 (eligible leader replicas), 455 (reassignment), 460 (elections on request). Not from a
KIP are the boot rule, the choice among several possible leaders, and how leaderships are balanced.
"""
