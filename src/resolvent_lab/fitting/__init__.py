"""Fits of Lightning modules that can be killed at any moment and go on exactly: for `train` and for the experiments."""
