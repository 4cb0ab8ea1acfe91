"""What we ask of the machine: folders of our own, processes, and a Java.

Imports `model` and the standard library only, so that every part may import it.
"""
