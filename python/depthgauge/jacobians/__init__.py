"""Whole Jacobians of stacks: multiplied out, as operators, by path order, and their ranks along depth."""
