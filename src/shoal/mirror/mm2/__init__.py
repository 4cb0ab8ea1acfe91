"""Compatibility with MirrorMaker 2: its configuration file, topics, names, heartbeats."""
