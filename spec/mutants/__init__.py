"""Holds the seeded bugs. Each changes one behaviour of the core, and the invariant that it names must find it.

A mutant that survives is a hole in the spec. `planting` defines a mutant, `judges` has the programs that hunt mutants,
`registry` lists all mutants, and `known_seeds` has the seed that found each. `python -m spec.mutants` runs them all.
"""
