"""Holds a job for one process: from reading its entries, over the claim, recovery and work, to the release."""
