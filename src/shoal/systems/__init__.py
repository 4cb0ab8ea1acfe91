"""The systems under test, clusters and mirrors, behind two small interfaces.

Nothing here prints. Long steps report their progress through callbacks; failures are
`SystemFailure`.
"""
