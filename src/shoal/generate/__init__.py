"""Files that deploy Shoal: container images, compose, Kubernetes, systemd, clouds.

Rules of this package:
- Every generator is pure: a plan in, file names and texts out. `files.py` writes them.
- It knows the commands of Shoal by their names only, and imports none of its parts.
- Tests start what the generated files say, with the commands, environments and probes in them.
"""
