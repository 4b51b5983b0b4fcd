"""bevel: train JAX models with differential privacy, on any mesh, in mixed precision.

The public names, in the order in which data flows. They are imported on first use. A user of JAX
Privacy can replace `import jax_privacy` with `import bevel as jax_privacy`.
"""

# Now, because several threads cannot import jax at the same time.
import jax as _jax  # noqa: F401

from bevel.lazy import lazy_exports

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_exports(__name__)
