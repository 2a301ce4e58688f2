"""Runs one tick: drives the doors of tick and job, carries out their effects, and recovers the job first."""
