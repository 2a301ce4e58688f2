"""Holding a job: from the look at its entries over the claim, recovery and the work to the release."""
