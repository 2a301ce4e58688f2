"""Reads files in folders and object stores: Parquet, ORC, CSV and JSON."""
