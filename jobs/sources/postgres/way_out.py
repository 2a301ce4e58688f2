"""The ways out that messages name when a series of changes cannot be continued."""

from typing import Final

ANEW: Final = "read the tables anew, with another slot, an empty folder of staged files and another id of the source"
"""Every refusal ends with this way out: begin a new series of changes, with a new snapshot."""

EVOLVE: Final = (
    'To read it from here on: PostgresChanges(..., new_columns="evolve"). To go on without it: new_columns="ignore"'
)
"""The way out for a column that the source does not read."""
