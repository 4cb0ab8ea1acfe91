"""The metadata quorum: Raft in KRaft's pull form, as a pure state machine and a file shell.

    node       one member: messages and time in, actions out; elections and who leads
    election   counting votes
    replica    what a member knows and never forgets: epoch, vote, log, high watermark
    leader     what a leader does: answers fetches, counts what a majority has, checks its quorum
    follower   what a follower does: fetches, truncates where it diverged, loads snapshots
    log        the log in memory: epochs, offsets, voter sets, where two logs part
    messages   what members say to each other; one to one with Apache Kafka's requests
    actions    what a member wants done, in order
    model      voters, entries, snapshots and the state of an election
    config     time-outs and limits
    codec      entries and snapshots as record batches of Apache Kafka's format
    wire       messages as Apache Kafka's requests and responses
    driver     performs the actions of a node in their order
    memory     storage that forgets, for observers that fetch everything anew
    storage    storage in files, forced to the disk: `log_file` and `small_files`
    errors     what can go wrong

Only `storage` and its two do input or output. How the pull form differs from Raft as
published: followers fetch, and the offset from which they fetch is their acknowledgement; a
leader that is not fetched from by a majority resigns; entries carry no index of their
predecessor, since each fetch names the epoch of the last entry that the follower has.
"""
