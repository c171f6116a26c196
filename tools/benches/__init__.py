"""The benchmarks, one topic per module."""
