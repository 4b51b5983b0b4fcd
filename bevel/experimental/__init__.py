"""Names of JAX Privacy that it counts as experimental, where it has them."""
