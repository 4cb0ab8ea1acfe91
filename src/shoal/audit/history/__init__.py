"""Histories that other tools recorded: their lines, their ledger, their verdict as JSON."""
