"""Words that all parts share: errors, identities, ledger schemas, findings, results, units.

Imports nothing of ours and nothing heavy: brokers import it too.
"""
