"""Errors of reading and writing keyed state. Each names the operator, the file or size, and the way out."""


class StateFileError(Exception):
    """A state or range file is missing, damaged or of another schema."""

    def __init__(self, operator: str, path: str, problem: str) -> None:
        """Name the operator, the file and what is wrong with it."""
        super().__init__(
            f"operator {operator}: file {path} {problem}; it is part of the checkpoint that this run restored, "
            "so restore from an older checkpoint"
        )


class StateTooLargeError(Exception):
    """A subtask's state is larger than what the memory backend may put into a checkpoint's entry."""

    def __init__(self, operator: str, size_bytes: int, bytes_max: int) -> None:
        """Name the operator, the size, the limit and the way out."""
        super().__init__(
            f"operator {operator}: the state of one subtask takes {size_bytes} bytes, and memory_state_bytes_max "
            f"allows {bytes_max} in a checkpoint's entry; set state_backend to incremental, or raise the limit"
        )


class KeyGroupError(Exception):
    """Rows reached a subtask that does not own their key groups."""
