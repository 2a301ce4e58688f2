"""Reads Python data sources of Spark."""
