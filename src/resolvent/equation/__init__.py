"""The equation w = b + tau F(w): the problem, the one loop that solves it, and its derivatives."""
