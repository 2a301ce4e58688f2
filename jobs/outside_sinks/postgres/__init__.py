"""The outside sink that writes a table to a PostgreSQL table."""
