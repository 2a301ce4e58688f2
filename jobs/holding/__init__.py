"""What a process that holds a job has: its stores, its lease, and the boundaries where a test may strike."""
