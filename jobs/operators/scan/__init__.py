"""Reads rows in Spark's tasks, so that Spark need not plan each micro-batch."""
