"""The command line: `tidemark run`, `explain`, `checkpoints`, `cut`.

A command reads or starts something, and `jobs.showing` renders the result. Each command itself imports the heavy
packages that it needs (Spark, delta-rs, Polars).
"""
