"""Compares Tidemark with Flink itself: Flink's own classes and Tidemark's must answer the same random input alike."""
