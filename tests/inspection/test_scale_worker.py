import warnings

import jax
import pytest
import scaled_steps
from meshes import GRID, LINE
from scaled_steps import LAYERS, D, K

from bevel.errors import FixArgumentsError
from bevel.inspection.scale_worker import answer, by_kind, bytes_per_device, load, measure

WEIGHTS = 4 * LAYERS * 2 * D * K


def test_a_data_parallel_step():
    found = measure(scaled_steps.build, LINE, 64, {})
    assert found["held"] == {
        "params": WEIGHTS,
        "optimizer": WEIGHTS,
        "noise": WEIGHTS,
        "batch": 4 * 8 * D,
        "other": 0,
    }
    # Two products forward and four backward in each layer, for 8 of 64 examples.
    assert found["flops"] == LAYERS * 6 * 2 * 8 * D * K
    # The gradients of one layer, in every step of the loop over layers.
    assert found["collectives"] == {
        "all-reduce over data": {
            "count": LAYERS,
            "bytes": WEIGHTS,
            "sent": 2 * 7 / 8 * WEIGHTS,
        }
    }
    assert found["peak"] >= 3 * WEIGHTS


def test_sums_that_are_sliced_count_as_reduce_scatter():
    split = {"up": (None, "data"), "down": (None, None, "data")}
    found = measure(scaled_steps.build, LINE, 512, split)
    assert found["held"]["params"] == WEIGHTS / 8
    kinds = {name.split(" over ")[0] for name in found["collectives"]}
    assert kinds == {"all-gather", "reduce-scatter"}
    assert found["collectives"]["reduce-scatter over data"]["bytes"] == WEIGHTS
    assert found["collectives"]["reduce-scatter over data"]["sent"] == 7 / 8 * WEIGHTS


def test_axes_are_kept_apart():
    split = {"up": (None, None, "model"), "down": (None, "model")}
    found = measure(scaled_steps.build, GRID, 64, split)["collectives"]
    assert set(found) == {"all-reduce over data", "all-reduce over model"}
    # Activations of 16 of 64 examples, forward and backward, in every layer; the first one needs
    # no gradient of its input, but the loop computes it.
    assert found["all-reduce over model"]["bytes"] == 2 * LAYERS * 4 * 16 * D
    assert found["all-reduce over data"]["bytes"] == WEIGHTS / 2


def test_steps_are_found_by_module_and_by_file():
    by_module = load({"module": "scaled_steps", "name": "build"})
    assert by_module is scaled_steps.build
    by_file = load({"file": scaled_steps.__file__, "name": "build"})
    assert by_file.__code__.co_filename == scaled_steps.__file__
    with pytest.raises(FixArgumentsError, match="scaled_steps has no function 'nothing'"):
        load({"module": "scaled_steps", "name": "nothing"})


def test_a_batch_that_fails_is_an_answer():
    request = {
        "build": {"module": "scaled_steps", "name": "broken"},
        "axes": {"data": 8},
        "devices": 8,
        "batches": [4],
        "spec": {},
    }
    with warnings.catch_warnings():  # which a worker turns off for good
        found = answer(request)
    assert found["4"]["error"] == "RuntimeError: this step is broken"


def test_bytes_on_one_device():
    assert bytes_per_device(jax.ShapeDtypeStruct((8, 2), "float32")) == 64
    assert by_kind(type("Report", (), {"collectives": []})) == {}
