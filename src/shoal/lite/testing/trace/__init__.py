"""Traces of a cluster: events with vector clocks, for ShiViz.

    tracer    a node's own clock and log, in GoVector's format
    frames    clocks in the headers of requests and answers between nodes
    shiviz    merges the logs into one file for ShiViz

Rules of this package:
- A cluster whose folder has a folder `trace` is traced: every node that starts there writes
  `trace/<node>-Log.txt`. Without it tracing costs a comparison for each message.
- Only important steps are events: a node starts, brokers register and end, leaders are elected and
  take over, records are appended, replicated and committed. Every message between nodes carries
  the sender's clock, so each event knows all events that may have caused it.
- Clients are not traced: only nodes are in a trace.
"""
