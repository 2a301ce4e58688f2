"""The command line: `tidemark run`, `explain`, `checkpoints`, `cut`.

Commands read or start, and `jobs.showing` makes what they show.
What is heavy to import (Spark, delta-rs, Polars) is imported by the command that needs it.
"""
