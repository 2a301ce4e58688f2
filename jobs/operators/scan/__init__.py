"""Reads rows in Spark's tasks, without a plan of Spark's for each micro-batch."""
