"""What a cluster knows about itself, as a log of records, and who decides about it.

    records       the records, and their bytes
    state         records in, state out; the same at controllers and brokers
    requests      what can be asked of a controller, and what it answers
    controller    the active controller: requests and time in, records and answers out
    partitions    who leads, who is in sync, who is eligible: the one place that decides it
    brokers       registration, fencing, the boot rule, shut-down
    in_sync       proposals of leaders
    leaders       elections on request, and spreading of leaderships
    reassignment  other replicas for partitions
    placement     which brokers get replicas
    commands      topics, settings, producer ids
    recoveries    unclean elections under way
    sessions      which brokers live
    status        what is wrong, in words
    profiles      how many must have a record before it is acknowledged
    founding      how controllers that are started one by one agree on who votes

The shells, which have clocks, disks and sockets:

    node          a member of the quorum, and the active controller while it leads
    host          a node with its port: `server` takes frames, `desk` answers them
    peers         requests of the quorum to controllers
    link          a broker's end: follows the metadata, asks for changes
    joining       the way of a controller into its quorum
    process       a controller's process

    rpc, values   what is asked of a controller, as Apache Kafka's requests and responses
    quorum_admin  what clients ask about the quorum

Everything else is pure: no clock, no disk, no network, no chance. The rules are Apache Kafka's:
KIP-631 (brokers and controllers), 497 (proposals), 841 and 903 (who may be in sync), 966 (eligible
leader replicas), 455 (reassignment), 460 (elections on request). Beyond them are the boot rule,
the choice among several who may lead, and how leaderships are spread.
"""
