"""The executable specification of the protocol: it runs the real doors and checks what they do."""
