"""Caches compiled programs between tests, because they start the same runs many times."""

import gc

import pytest
from compiled_once import compiled_once  # noqa: F401 (a fixture)


@pytest.fixture(autouse=True)
def collect_failed_orbax_reads(request):
    """Collects the objects of failed Orbax reads in the test that ignores their warnings.

    Otherwise they are collected in a later test, which then fails.
    """
    yield
    if request.node.get_closest_marker("filterwarnings"):
        gc.collect()
