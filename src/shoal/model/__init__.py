"""Types that all packages share: errors, identities, ledger schemas, findings, results, units.

Imports no other package of Shoal and nothing heavy: brokers import it too.
"""
