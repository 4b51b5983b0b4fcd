"""Models of the command line: built-in ones, and those of your own files."""

from bevel.lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)
