"""Sources of a pipeline's rows. Each can be read again from any position."""
