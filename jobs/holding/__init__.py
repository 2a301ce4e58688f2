"""Holding a job: observing its rows, claiming it, keeping its lease, releasing it."""
