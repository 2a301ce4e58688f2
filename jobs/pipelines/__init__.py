"""The pipelines that come with Tidemark: the demo and the worked examples, each a module with a `build`."""
