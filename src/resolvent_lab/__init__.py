"""An application of resolvent: the paper's experiments, benchmarks and the command line."""
