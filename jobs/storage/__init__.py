"""The storage of a warehouse's files: one port, implemented by a folder and by an object store (ADR 12)."""
