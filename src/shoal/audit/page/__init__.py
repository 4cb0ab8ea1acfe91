"""The data behind pages and reports, from the evidence of an audit or straight from ledgers."""
