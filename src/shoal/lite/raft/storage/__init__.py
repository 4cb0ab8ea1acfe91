"""The files of a member of the quorum, and the shell that performs what it decides."""
