"""Classes for the tests of a user's pipeline. They are public as `tidemark.testing`."""
