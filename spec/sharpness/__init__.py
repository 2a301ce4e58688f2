"""Measures how sharp the specification is: plants small random slips in the core, and counts those that are found."""
