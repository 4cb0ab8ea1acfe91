"""What happened before what in a cluster, as vector clocks, for ShiViz to draw.

    tracer    a node's own clock and log, in GoVector's format
    frames    clocks in the headers of requests and answers between nodes
    shiviz    many logs made into the one file that ShiViz reads

Rules of this package:
- A cluster whose folder has a folder `trace` is traced: every node that starts there writes
  `trace/<node>-Log.txt`. Without one this costs a comparison for each message.
- Only what matters is an event: a node begins, brokers come and go, leaders are decided and take
  over, records are written, copied and committed. Everything that nodes send to each other
  carries the sender's clock, so each event knows all events that may have caused it.
- Clients know nothing of this: only nodes are in a trace.
"""
