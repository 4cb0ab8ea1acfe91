"""The commands: the only package that prints.

Data goes to standard output; progress and messages go to standard error. The module of a command
is imported when the command is called, so that `shoal cluster up` does not load Spark.
"""
