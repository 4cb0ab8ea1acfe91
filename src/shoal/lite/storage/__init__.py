"""The log of a partition: raw record batches in segment files, in Apache Kafka's own formats.

    partition_log   one partition's folder, and everything that can be done with it
    appending       writes of producers, coordinators and mirrors
    fetched         writes of followers: checks of the batches that a leader sent
    reading         batches by offset and by time
    truncation      removes records at the end, or all
    segment         one file of batches and its two indexes
    slices          bytes that are still in the file
    scan            from bytes to batch headers; where the valid part of a file ends
    indexes         entries of the offset index and of the time index, and how to search them
    units           batches that were written together and are valid only together
    flushing        what is synced to disk, and the recovery point
    offline         how an I/O error or damage takes a log offline
    header          the 61 bytes at the start of every batch
    files           files that are replaced atomically, and Kafka's checkpoint formats
    disk            complete writes, through a disk that can be made to fail

    state/          what follows from the batches of a log
        log_state           the state that all operations of a log share
        producer_state      last sequence of each producer, open transactions
        snapshots           the producer state in files
        replaying           restoring the producer state from the log
        transaction_index   the aborted transactions of a segment
        aborted             the aborted transactions that a fetch response needs
        epochs              which leader epoch began at which offset
    recovery/       what a process knows of its logs after a restart
        log_recovery        opens a log: trusts, checks or truncates its segments
        shutdown_marker     how the previous process ended
        last_shutdown       which segments can be trusted after that
        log_end_file        how far each log was written, to tell data loss from a torn write
        truncation_marker   records are missing in a log, and the controller does not know it yet
        start_offset        the checkpoint of the log start offset
        high_watermarks     the checkpoint of the high watermarks
    cleaning/       retention, compaction, removal of folders
        deletion            removes records at the start, also those that retention does not keep
        retention           which segments retention deletes
        cleaning            compacts segments while the log is used
        compaction          which records compaction keeps
        folder_removal      removes the folders of deleted logs

`scan`, `header`, `state/producer_state`, `state/epochs`, `cleaning/retention` and
`cleaning/compaction` do no I/O.
"""
