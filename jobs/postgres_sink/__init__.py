"""The outside sink that appends rows to a PostgreSQL table."""
