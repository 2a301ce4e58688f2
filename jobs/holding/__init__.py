"""What a process that holds a job has: its stores, and the boundaries where a test may strike."""
