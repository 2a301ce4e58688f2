"""Sources of a pipeline's rows. Each source can be read again from any position."""
