"""The checkpoints of one subtask (B1 to B4, F1). `SubtaskCheckpointing` is the door; `Subtasks` has all of them."""
