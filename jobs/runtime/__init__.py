"""The runtime: what drives the job door and carries out its effects."""
