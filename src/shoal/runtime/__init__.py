"""Access to the machine: Shoal's folders, processes, background tasks, and a Java runtime.

Imports only `model` and the standard library, so that every package may import it.
"""
