"""The measurements: what Tidemark costs beside its peers, on the same rows in one run (docs/performance.md).

Nothing of the product imports this folder. `python -m bench` runs the rows P1..P11 and P19 one after the other, each
program a process of its own, and writes `bench/results.md` and `bench/results.json`.
"""
