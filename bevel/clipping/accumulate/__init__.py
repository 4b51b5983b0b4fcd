"""From norms to coefficients to the clipped sum over the batch.

This package is internal: it exports nothing, and only `bevel.clipping` uses its modules.
"""

__all__: list[str] = []
