"""Benchmarks: the cost of implicit layers, beside the explicit network and other libraries."""
