"""The log in which a source stages a database's changes, and what such sources share (ADR 13)."""
