"""Creates meshes and places arrays on them.

The tools of `bevel.inspection` and `bevel.processes` are exported here too.
"""

from bevel.lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)
