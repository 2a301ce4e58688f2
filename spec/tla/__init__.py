"""Specifies the commit protocol in TLA+. TLC checks the specification, and checks traces of real ticks against it."""
