"""The rules: predicates over the events of a run. They share no code with the core."""
