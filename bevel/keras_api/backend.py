"""Imports Keras, and checks that it runs on JAX."""

from bevel.errors import FixArgumentsError

try:
    import keras
except ImportError as error:
    if error.name == "keras":
        raise ImportError(
            "bevel.keras_api needs Keras: pip install 'bevel[frameworks]'."
        ) from error
    raise ImportError(
        f"Keras cannot be imported ({error}). If it looks for another backend, set the environment "
        "variable KERAS_BACKEND=jax before the first import of keras."
    ) from error

__all__ = ["check_backend", "keras"]


def check_backend() -> None:
    """Raises unless Keras uses its JAX backend."""
    name = keras.backend.backend()
    if name != "jax":
        raise FixArgumentsError(
            f"Keras uses the {name} backend, but bevel differentiates JAX programs. Set "
            "os.environ['KERAS_BACKEND'] = 'jax' before the first import of keras."
        )
