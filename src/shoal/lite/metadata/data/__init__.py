"""The records of the metadata log, the state that they make, requests and their bytes."""
