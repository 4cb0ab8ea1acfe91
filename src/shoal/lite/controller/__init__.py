"""What a cluster knows about itself, as a log of records.

    records     the records, and their bytes
    state       records in, state out; pure
    commands    state and a wish in, records or a refusal out; pure
    storage     where the records are kept: one log, forced to the disk
    controller  the shell: one command after the other, records written before they count

A quorum of controllers can take the place of `storage` without a change to the others.
"""
