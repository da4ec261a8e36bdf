"""Example 4: digits are classified under noise, by residual networks with explicit and with implicit layers."""
