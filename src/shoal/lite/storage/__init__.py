"""The log of a partition: raw record batches in segment files, in Apache Kafka's own formats.

    partition_log   one partition's folder: append, read, recover, truncate, delete from the start
    segment         one file of batches and its two indexes
    slices          bytes that are still in the file
    scan            from bytes to batch headers; where the valid part of a file ends
    indexes         entries of the offset index and of the time index, and how to search them
    units           batches that were written together and are valid only together
    fetched         checks of the batches that a follower fetched
    flushing        what is synced to disk, and the recovery point
    offline         how an I/O error or damage takes a log offline
    header          the 61 bytes at the start of every batch
    files           files that are replaced atomically, and Kafka's checkpoint formats
    disk            complete writes, through a disk that can be made to fail

    state/          what follows from the batches of a log
        producer_state      last sequence of each producer, open transactions
        snapshots           the producer state in files
        replaying           restoring the producer state from the log
        transaction_index   the aborted transactions of a segment
        aborted             the aborted transactions that a fetch response needs
        epochs              which leader epoch began at which offset
    recovery/       what a process knows of its logs after a restart
        shutdown_marker     how the previous process ended
        last_shutdown       which segments can be trusted after that
        log_end_file        how far each log was written, to tell data loss from a torn write
        truncation_marker   records are missing in a log, and the controller does not know it yet
        start_offset        the checkpoint of the log start offset
        high_watermarks     the checkpoint of the high watermarks
    cleaning/       retention, compaction, removal of folders

`scan`, `header`, `state/producer_state`, `state/epochs`, `cleaning/retention` and
`cleaning/compaction` do no I/O.
"""
