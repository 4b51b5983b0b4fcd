"""FLOPs and traffic, compared with what follows from the shapes."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from bevel.inspection import hlo, hlo_costs

B, D, K, LAYERS = 4, 8, 16, 5


def read(function, *args):
    module = hlo.parse(jax.jit(function).lower(*args).compile().as_text())
    return module, hlo.runs(module, lambda run: 0.0)


def test_a_product():
    _, runs = read(lambda x, w: x @ w, jnp.ones((B, D)), jnp.ones((D, K)))
    assert hlo_costs.flops(runs) == (2 * B * D * K, [])


def test_products_in_a_loop_are_multiplied():
    def layers(x, ws):
        return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, ws)[0]

    _, runs = read(layers, jnp.ones((B, D)), jnp.ones((LAYERS, D, D)))
    assert hlo_costs.flops(runs)[0] == LAYERS * 2 * B * D * D


@pytest.mark.parametrize("groups", [1, 2])
def test_a_convolution(groups):
    def conv(x, w):
        return jax.lax.conv_general_dilated(
            x,
            w,
            (1, 1),
            "VALID",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=groups,
        )

    _, runs = read(conv, jnp.ones((2, 9, 9, 4)), jnp.ones((3, 3, 4 // groups, 6)))
    assert hlo_costs.flops(runs)[0] == 2 * (2 * 7 * 7 * 6) * 3 * 3 * 4 // groups


CALL = """ENTRY %main (x: bf16[4,8], w: bf16[8,16]) -> bf16[4,16] {
  %x = bf16[4,8]{1,0} parameter(0)
  %w = bf16[8,16]{1,0} parameter(1)
  %gemm = (bf16[4,16]{1,0}, s8[128]{0}) custom-call(%x, %w), custom_call_target="TARGET", backend_config={"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"]}}}
  ROOT %y = bf16[4,16]{1,0} get-tuple-element(%gemm), index=0
}
"""  # noqa: E501


def test_library_calls_are_read_or_named():
    def flops(target):
        module = hlo.parse(CALL.replace("TARGET", target))
        return hlo_costs.flops(hlo.runs(module, lambda run: 0.0))

    assert flops("__cublas$gemm") == (2 * 4 * 8 * 16, [])
    assert flops("__cudnn$convForward") == (0.0, ["__cudnn$convForward"])
    assert flops("annotate_device_placement") == (0.0, [])


def test_traffic_of_a_product_is_its_operands_and_result():
    module, runs = read(lambda x, w: x @ w, jnp.ones((B, D)), jnp.ones((D, K)))
    assert hlo_costs.traffic(module, runs) == 4 * (B * D + D * K + B * K)


def test_a_loop_reads_each_layer_once():
    def layers(x, ws):
        return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, ws)[0]

    module, runs = read(layers, jnp.ones((B, D)), jnp.ones((LAYERS, 64, 64))[:, :D, :D] + 1)
    weights = 4 * LAYERS * D * D
    # If every step read the whole stack, this would be LAYERS times as much.
    assert weights <= hlo_costs.traffic(module, runs) <= 4 * weights + 4 * LAYERS * 8 * B * D


def mesh():
    return jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))


@pytest.mark.parametrize("spec, sliced", [(P("data"), True), (P(None, "data"), True), (P(), False)])
def test_a_sum_that_is_sliced_is_recognised(spec, sliced):
    x = jax.device_put(jnp.ones((16, 32)), NamedSharding(mesh(), P("data")))
    gram = jax.jit(
        lambda x: jnp.einsum("bi,bj->ij", x, x), out_shardings=NamedSharding(mesh(), spec)
    )
    module = hlo.parse(gram.lower(x).compile().as_text())
    (total,) = [i for i in module.entry.instructions.values() if i.opcode == "all-reduce"]
    found = hlo_costs.sliced_bytes(module, module.entry, total, 8)
    assert found == (4 * 32 * 32 if sliced else 0)
