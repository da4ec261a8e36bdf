"""What implicitness costs: training steps of one network by several contenders, side by side."""
