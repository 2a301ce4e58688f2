"""Renders a job for the command line and for Dagster: quantities, tables, time lines, sentences.

Each module only turns plain data into text. No module here knows the command line.
"""
