"""The commands. The only package that prints.

Data goes to standard output, progress and messages to standard error. Each command lives in
a module of its own, loaded when it is called: `shoal cluster up` must not pay for Spark.
"""
