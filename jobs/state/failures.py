"""What goes wrong when keyed state is read: each error names the file, the operator and the way out."""


class StateFileError(Exception):
    """A state or range file is missing, damaged or of another schema."""

    def __init__(self, operator: str, path: str, problem: str) -> None:
        """Name the operator, the file and what is wrong with it."""
        super().__init__(
            f"operator {operator}: file {path} {problem}; it is part of the checkpoint that this run restored, "
            "so restore from an older checkpoint"
        )


class KeyGroupError(Exception):
    """Rows reached a subtask that does not own their key groups."""
