"""Nexmark: the queries of an auction house, which every streaming engine answers."""
