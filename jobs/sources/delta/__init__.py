"""Reads Delta tables: their rows and later changes, and the cuts of another job."""
