"""How sharp the spec is: small slips are planted in the core by chance, and it is counted which of them are found."""
