"""Operators whose rows have a time: windows, joins in time, rows within a time, and timers of functions.

Each holds rows until the watermark, or the clock of a barrier, has passed them, and answers what is due
(`process.FiresInTime`). `measured_times` learns the watermark of a split from the rows that a task reads.
"""
