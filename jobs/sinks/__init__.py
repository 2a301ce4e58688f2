"""Staged files: written where no Delta log mentions them, named once, never changed."""
