"""Users' models run with JAX's own settings: the other tests forbid promotion."""

import pytest
from own_models import promotion


@pytest.fixture(name="standard_promotion")
def fixture_standard_promotion():
    with promotion():
        yield
