"""The command line: `tidemark run`, `explain`, `checkpoints`, `cut`.

Commands read or start; `render_*` modules turn plain data into what is shown and touch nothing else.
What is heavy to import (Spark, delta-rs, Polars) is imported by the command that needs it.
"""
