"""Writes staged files: Parquet files that no Delta log mentions yet, and that never change."""
