"""Finds where parameters meet examples, and taps those equations to read the gradients there."""
