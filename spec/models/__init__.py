"""Models of operators on rows: batch results against the functions that tasks call."""
