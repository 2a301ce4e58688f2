"""What a user reads of a job, for the command line and for Dagster: quantities, tables, time lines, sentences.

Each module turns plain data into what is shown, and touches nothing else. No module here knows the command line.
"""
