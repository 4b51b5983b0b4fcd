"""Data sets of the command line: from a file to records, and what is public about them."""

from bevel.lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)
