"""The rules of the audit, each a pure function of what the ledgers record."""
