"""The records of the metadata log, the state built from them, requests and their encoding."""
