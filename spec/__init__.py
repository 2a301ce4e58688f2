"""The executable specification of the protocol: what runs the real doors and judges what they do."""
