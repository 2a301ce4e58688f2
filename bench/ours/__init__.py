"""Our programs: each measures one thing through the public pipeline API and the real tick, and prints one JSON line."""
