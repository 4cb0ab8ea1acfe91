"""Random histories of a cluster: the state machines of production under simulated faults.

    python -m shoal.lite.simulation --seeds 0:1000 --steps 1000

Network, disks, clocks, processes and clients are simulated, and follow from a seed; everything
that decides is `ControllerNode`, `RaftNode` and `PartitionShell` as they run in production. After
every event the invariants are checked. A failure is reported with its seed, and with the shortest
trace found that still fails.

    setup            what follows from a seed: the cluster, the weather, the steps
    world            nodes, network and time
    network, disk, log, process   what the world is made of
    controllers, partition        production's shells of a controller and a replica, with messages
    scheduler        their time
    brokers          a shell of a broker, with production's reports to the controller
    clients          producers, consumer, administrator
    mischief         the steps: faults, and what an administrator does
    judge            the invariants: quorum_judge, partition_judge
    history          one history, from start to healing
    shorten          a failing history with as few steps as possible
    parts, sabotage  what can be swapped, and the swaps that must be found
    seed_protocol    a protocol that does not work, and must be found too
    runner           many histories, on all cores
"""
