"""One file for each claim of speed; `python -m benchmarks.NAME` measures it. See README.md."""
