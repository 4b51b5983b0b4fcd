"""The defaults of the [model] table."""

from bevel.models import ModelTable


def test_a_config_needs_no_model_table():
    assert ModelTable().module is None
