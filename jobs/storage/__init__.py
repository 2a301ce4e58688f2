"""The port to a warehouse's files, and what lies behind it: a folder, or an object store (ADR 12)."""
