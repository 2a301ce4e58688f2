"""Flink itself as a judge: its own classes get the same random input as Tidemark's, and must answer alike."""
