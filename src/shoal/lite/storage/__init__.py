"""The log of a partition: raw record batches in segment files, in Apache Kafka's own formats.

    partition_log   one partition's folder: append, read, recover, delete from the start
    segment         one file of batches and its two indexes
    slices          bytes that are still in the file
    scan            from bytes to batch headers; where the valid part of a file ends
    indexes         entries of the offset index and of the time index, and how to search them
    producer_state  what producers have written, which sequence comes next, what is undecided
    transaction_index   which transactions were aborted
    aborted         what a reader must be told of them
    snapshots       what is known of producers, written down
    replaying       learning that again from the log
    retention       which segments have been kept for long enough
    ended           how a log was left, and what of it can be trusted
    end_marks       how far logs were written: by that a loss is known from a torn write
    cut_mark        that something is missing in a log, and was not told yet
    flushing        what is forced to the disk, and from where on a power loss may have struck
    epochs          which leader wrote from which offset on
    header          the 61 bytes in front of every batch
    settings        what can be set about a log
    files           files that are replaced at once or not at all, and Kafka's checkpoints
    disk            whole writes, by way of a disk that can be made to fail

`scan`, `producer_state`, `epochs`, `retention` and `header` do no input or output.
"""
