"""Everything in a warehouse except Spark's files: logs, entries, cuts, small files, and holders' locks."""
