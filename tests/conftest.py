"""Settings that have to be in place before any test touches a jax array."""

import hypothesis
import jax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

hypothesis.settings.register_profile("bevel", derandomize=True, deadline=None)
hypothesis.settings.load_profile("bevel")
