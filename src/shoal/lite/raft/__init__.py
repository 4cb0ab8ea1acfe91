"""The metadata quorum: Raft in KRaft's pull form, as a pure state machine and a file shell.

    node       one member: messages and time in, actions out; elections and who leads
    election   counting votes
    replica    the state that every role shares: epoch, vote, log, high watermark
    leader     the leader role: answers fetches, commits what a majority has, checks its quorum
    follower   the follower role: fetches, truncates where it diverged, loads snapshots
    log        the log in memory: epochs, offsets, voter sets, where two logs diverge
    messages   the messages between members; one to one with Apache Kafka's requests
    actions    what a member asks its shell to do, in order
    model      voters, entries, snapshots and the state of an election
    config     time-outs and limits
    codec      entries and snapshots as record batches of Apache Kafka's format
    wire       messages as Apache Kafka's requests and responses
    driver     performs the actions of a node in their order
    memory     storage in memory only, for observers that fetch everything again after a start
    storage    storage in files, forced to the disk: `log_file` and `small_files`
    errors     the errors of the quorum

Only `storage`, `log_file` and `small_files` do input or output. How the pull form differs from
Raft as published: followers fetch, and the offset from which they fetch is their acknowledgement; a
leader that is not fetched from by a majority resigns; entries carry no index of their
predecessor, since each fetch names the epoch of the last entry that the follower has.
"""
