"""MirrorMaker 2's ways: its configuration file, topics, names, heartbeats."""
