"""The lifecycle matrix: what may happen to topics and clusters while a mirror copies them.

`cells` says what is played and which outcomes are allowed, `plays` plays it on real clusters,
`events` knows how each event is made, and `judging` decides the outcome by what `reading` (which
is confluent-kafka alone) found on both sides.
"""
