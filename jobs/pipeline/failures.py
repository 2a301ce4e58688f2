"""The error for a pipeline that is written wrongly."""


class InvalidPipelineError(ValueError):
    """A pipeline that cannot be planned: names the vertex or table, the rule and the way out."""
