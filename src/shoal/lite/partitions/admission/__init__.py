"""May this batch be written? One place for the answer, for every kind of writer. Pure.

    decisions        what callers ask: the table of rules, and the functions that follow it
    batch_rules      a single batch: format, size, checksum, timestamps
    record_rules     single records, where the topic requires it; recompression
    producer_rules   what the log knows of the producer: epochs, sequences, markers
    guards           state: the transactions that the coordinator is asked about
    refusals         state: batches that were refused lately, so that later ones wait for them

Callers ask `decisions`; only it asks the rules.
"""
