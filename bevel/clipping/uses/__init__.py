"""Finds the equations that combine a parameter with an example, and taps their gradients.

This package is internal: it exports nothing, and only `bevel.clipping` uses its modules.
"""

__all__: list[str] = []
