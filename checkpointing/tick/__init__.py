"""Holds a job for one process: it reads the entries, claims the job, recovers, works, and releases the job."""
