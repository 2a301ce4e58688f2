"""The commit protocol in TLA+, checked by TLC; traces of real ticks are checked against it too."""
