"""The command line: `tidemark run`, `explain`, `checkpoints`, `cut`.

Commands read or start something, and `jobs.showing` renders the result. Each command imports heavy packages (Spark,
delta-rs, Polars) itself, when it needs them.
"""
