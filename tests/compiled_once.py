"""A fixture that caches compiled programs between the tests of a package that start many runs."""

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache


@pytest.fixture(scope="package", autouse=True)
def compiled_once(tmp_path_factory):
    settings = {
        "jax_compilation_cache_dir": str(tmp_path_factory.mktemp("compiled")),
        "jax_persistent_cache_min_compile_time_secs": 0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    before = {name: getattr(jax.config, name) for name in settings}
    for name, value in settings.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()
