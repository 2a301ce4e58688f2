"""The peers' programs. Each does the same work in the peer's usual way, and prints one line of JSON."""
