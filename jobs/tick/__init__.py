"""Runs one tick: drives the tick door and the job door, and carries out their effects.

A tick recovers the job first.
"""
