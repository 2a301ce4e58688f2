"""Holds rule-based state machines: Hypothesis chooses the events, and simple reference models judge the doors."""
