"""Before the first epoch: damage, tables ahead of or behind their cut, roll forward, and what a rollback would do."""
