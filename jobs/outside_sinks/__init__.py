"""Sinks outside of the warehouse: their rows become visible with a checkpoint, and never twice."""
