"""Our programs. Each measures one thing with the public pipeline API and a real tick, and prints one line of JSON."""
