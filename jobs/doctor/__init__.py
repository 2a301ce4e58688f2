"""Checks whether a job is healthy: its entries, tables, files and machine. Changes nothing and starts no Spark (K4)."""
