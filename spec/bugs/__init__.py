"""Holds the planted bugs as text, a file for each package. `plant` plants them, `python -m spec.bugs` hunts them."""
