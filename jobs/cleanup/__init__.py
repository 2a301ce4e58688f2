"""Clean-up: finds a job's unneeded files, from its entries and its tables' logs, and deletes them (K4)."""
