"""Operators whose rows have a time: windows, joins in time, rows within a time, and timers of functions.

Each operator holds rows until the watermark, or the clock of a barrier, has passed them, and then emits what is due
(`process.FiresInTime`). `measured_times` measures a split's event time in the rows that a task reads.
"""
