"""What is persisted: versioned records, their migrations, and the one place that knows the names of objects."""
