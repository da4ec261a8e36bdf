"""The paper's examples, from data to report."""
