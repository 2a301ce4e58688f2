"""What is wrong with a pipeline as it was written."""


class InvalidPipelineError(ValueError):
    """A pipeline that cannot be planned: names the vertex or table, the rule and the way out."""
