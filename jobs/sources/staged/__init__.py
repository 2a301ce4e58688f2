"""The log in which a source of a database's changes stages them, and what such sources share (ADR 13)."""
