"""Seeded bugs: each changes one behaviour of the core, and the invariant that it names must find it.

A mutant that survives is a hole in the spec. `planting` says what a mutant is, `judges` what hunts it, `registry` lists
all, and `known_seeds` says which seed found each. `python -m spec.mutants` runs them all.
"""
