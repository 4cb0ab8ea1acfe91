"""The systems under test, behind small interfaces: clusters today.

Nothing here prints; long steps report through callbacks, and failures are `SystemFailure`.
"""
