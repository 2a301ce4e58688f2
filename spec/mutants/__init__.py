"""Seeded bugs: each changes one thing that the core does, and one named invariant must be the one to find it.

A mutant that survives is a hole in the spec. `planting` says what a mutant is, `judges` who hunts it, `registry`
which there are, `known_seeds` where each was met; `python -m spec.mutants` runs them all.
"""
