"""The checks of `doctor`. Each is a function of a `CompiledStep`.

This package is internal: it exports nothing, and only `bevel.inspection` uses its modules.
"""

__all__: list[str] = []
