"""Traces the loss of one example, rewrites its equations and batches it, on any mesh.

This package is internal: it exports nothing, and only `bevel.clipping` uses its modules.
"""

__all__: list[str] = []
