"""Train Keras models privately: `make_private(model, config)`, then `model.fit` as before.

Keras is an optional dependency, and has to use its JAX backend.
"""

from bevel.lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)
