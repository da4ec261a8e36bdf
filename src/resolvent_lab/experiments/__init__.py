"""The paper's experiments, from data to report."""
