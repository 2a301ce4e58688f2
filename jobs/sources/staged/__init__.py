"""The log of changes that a source of a database writes down first, and what such sources share (ADR 13)."""
