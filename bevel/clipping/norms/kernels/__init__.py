"""Pallas kernels for GPUs, each with the same computation in plain XLA.

This package is internal: it exports nothing, and only `bevel.clipping` uses its modules.
"""

__all__: list[str] = []
