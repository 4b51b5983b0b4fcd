"""Caches compiled programs between tests, because they start the same runs many times."""

import gc

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


@pytest.fixture(autouse=True)
def collect_failed_orbax_reads(request):
    """Collects the objects of failed Orbax reads in the test that ignores their warnings.

    Otherwise they are collected in a later test, which then fails.
    """
    yield
    if request.node.get_closest_marker("filterwarnings"):
        gc.collect()
