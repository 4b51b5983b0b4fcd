import jax
import jax.numpy as jnp
import pytest
from compiled_texts import GPU_LOOP
from meshes import LINE, on

from bevel.inspection import hlo
from bevel.inspection.checks.origins import origin
from bevel.inspection.collectives import inspect_step


def gathered_from(function, *args):
    compiled = jax.jit(function).lower(*args).compile()
    report, module = inspect_step(compiled), hlo.parse(compiled.as_text())
    return {
        origin(module, c.computation, name)
        for c in report.collectives
        if c.kind == "all-gather"
        for name in c.operands
    }


X = on(LINE, (512, 32), "data")
PROGRAMS = {
    "plain": (lambda p, x: x @ p["w"], {"w": on(LINE, (32, 16), "data")}),
    "transposed": (lambda p, x: x @ p["w"].T, {"w": on(LINE, (16, 32), "data")}),
    "cast": (
        lambda p, x: x @ p["w"].astype(jnp.float32),
        {"w": on(LINE, (32, 16), "data", dtype=jnp.bfloat16)},
    ),
    "a layer of a stack": (
        lambda p, x: jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, p["w"])[0],
        {"w": on(LINE, (3, 32, 32), None, "data")},
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_arguments_are_found_through_slices_and_transposes(name):
    function, params = PROGRAMS[name]
    assert gathered_from(function, params, X) == {"p['w']"}


def test_what_was_computed_comes_from_no_argument():
    params = {"w": on(LINE, (32, 32), "data")}
    found = gathered_from(lambda p, x: x @ jnp.sin(p["w"] @ p["w"]), params, X)
    assert None in found


def test_of_gpu_text():
    module = hlo.parse(GPU_LOOP)
    assert origin(module, "region_0.1_spmd", "w") == "params['w']"
    assert origin(module, "region_0.1_spmd", "reduce-scatter.5") is None
