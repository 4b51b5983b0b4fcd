"""The fields of a model that have defaults."""

from bevel.models import BuiltModel, Model


def test_a_model_needs_neither_a_loss_nor_a_state():
    assert Model(lambda key: key, lambda params, x: x).loss is None
    assert BuiltModel(lambda: 0, lambda params, x: x, lambda *args: (0, {})).model_state is None
