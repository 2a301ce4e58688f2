"""The dataflow on Spark and Delta: everything between the protocol and the tables.

Imports checkpointing; never dagster, never spec.
"""
