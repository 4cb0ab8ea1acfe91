"""Files of ledgers, on this machine or on a file system of Arrow."""
