"""Measures what Tidemark costs compared with its peers, on the same rows and in one run (docs/performance.md).

The product imports nothing from this folder. `python -m bench` runs the programs of all rows one after the other, each
in a process of its own. It writes `bench/results.md` and `bench/results.json`.
"""
