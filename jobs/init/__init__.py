"""Writes a new project for `tidemark init`, from the template files beside this module."""
