"""Nexmark: the queries of an auction house, a benchmark of streaming engines."""
