"""New projects: what `tidemark init` writes, from template files that lie beside this module."""
