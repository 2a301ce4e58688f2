"""Builds the archive by which Spark brings this environment to workers that have nothing but Python."""
