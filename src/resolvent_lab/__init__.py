"""The application on top of resolvent: the paper's experiments, benchmarks and the command line."""
