"""What runs, clusters and mirrors report while they work: metrics, and the event stream."""
