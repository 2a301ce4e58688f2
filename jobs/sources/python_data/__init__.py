"""A source that wraps one of Spark's Python data sources."""
