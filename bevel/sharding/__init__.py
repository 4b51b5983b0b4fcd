"""Meshes: make one, place trees on it, look at what lies and moves there, and simulate it.

The tools that look at programs are in `bevel.inspection`, and those for several processes in
`bevel.processes`. Both are exported here too.
"""

from bevel.lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)
