"""Finds the equations that combine a parameter with an example, and taps their gradients."""
