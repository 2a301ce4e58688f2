"""What the tests of a user's pipeline need. Public as `tidemark.testing`."""
