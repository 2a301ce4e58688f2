"""Everything that a warehouse holds except Spark's files: logs, entries, cuts, small files, and holders' locks."""
