"""Caches compiled programs between tests, because they start the same runs many times."""

from compiled_once import compiled_once  # noqa: F401 (a fixture)
