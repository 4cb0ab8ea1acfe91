"""The files of a quorum member, and the driver that performs its actions."""
