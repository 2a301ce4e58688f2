"""What is persisted: versioned records, their migrations, and the one module that knows the names of objects."""
