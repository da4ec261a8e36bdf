"""Training on your own data: `resolvent train`, `evaluate`, `predict` and `diagnose`."""
