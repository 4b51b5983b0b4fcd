"""`inspect_step` on programs whose communication is known."""

import json

import jax
import jax.numpy as jnp
import pytest
from compiled_texts import GPU_LOOP, GPU_LOOP_OF_UNSTATED_LENGTH, GPU_WRAPPED
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import bevel
from bevel.errors import FixArgumentsError
from bevel.inspection.collectives import inspect_step


def mesh(**sizes):
    return jax.make_mesh(
        tuple(sizes.values()), tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes)
    )


def struct(mesh, shape, *spec, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, P(*spec)))


def step(function, *args, **options):
    return inspect_step(jax.jit(function, **options).lower(*args).compile())


def rows(report):
    return [(c.kind, c.bytes, c.axes, c.times) for c in report.collectives]


GRID = mesh(data=4, model=2)


def test_an_all_reduce_of_a_known_array():
    report = step(lambda x: jnp.sum(x, axis=0), struct(mesh(data=8), (8, 32), "data"))
    assert rows(report) == [("all-reduce", 4 * 32, ("data",), 1)]
    (found,) = report.collectives
    assert found.sent == 2 * 7 / 8 * 4 * 32 and found.group_size == 8 and found.reducer == "add"
    assert report.totals["all-reduce"].bytes == report.bytes == 4 * 32


def test_an_all_gather_of_a_known_array():
    whole = NamedSharding(GRID, P(None, "model"))
    report = step(lambda x: x, struct(GRID, (8, 32), "data", "model"), out_shardings=whole)
    assert rows(report) == [("all-gather", 4 * 8 * 16, ("data",), 1)]
    assert report.sent == 3 / 4 * 4 * 8 * 16


def manual(body, in_specs, out_specs):
    return jax.shard_map(body, mesh=GRID, in_specs=in_specs, out_specs=out_specs, check_vma=False)


MANUAL = {
    "psum": (lambda x: jax.lax.psum(x, "data"), ("all-reduce", 256, ("data",), 1)),
    "psum of both": (
        lambda x: jax.lax.psum(x, ("data", "model")),
        ("all-reduce", 256, ("data", "model"), 1),
    ),
    "pmax": (lambda x: jax.lax.pmax(x, "model"), ("all-reduce", 256, ("model",), 1)),
    "all_gather": (
        lambda x: jax.lax.all_gather(x, "model"),
        ("all-gather", 512, ("model",), 1),
    ),
    "psum_scatter": (
        lambda x: jax.lax.psum_scatter(x, "data", tiled=True),
        ("reduce-scatter", 256, ("data",), 1),
    ),
    "all_to_all": (
        lambda x: jax.lax.all_to_all(x, "model", 1, 0, tiled=True),
        ("all-to-all", 256, ("model",), 1),
    ),
    "ppermute": (
        lambda x: jax.lax.ppermute(x, "data", [(i, (i + 1) % 4) for i in range(4)]),
        ("collective-permute", 256, ("data",), 1),
    ),
    "ppermute in a loop": (
        lambda x: jax.lax.fori_loop(
            0, 5, lambda i, x: jax.lax.ppermute(x, "model", [(0, 1), (1, 0)]) + 1, x
        ),
        ("collective-permute", 256, ("model",), 5),
    ),
}


@pytest.mark.parametrize("name", MANUAL)
def test_manual_collectives(name):
    body, expected = MANUAL[name]
    # Each device holds f32[4, 16].
    report = step(manual(body, P("data", "model"), P("data", "model")), struct(GRID, (16, 32)))
    found = [row for row in rows(report) if row[0] == expected[0]]
    assert found == [expected]


def scanned(params, x):
    def layer(x, w):
        return jnp.tanh(x @ w["up"]) @ w["down"] + x, None

    return jnp.mean(jax.lax.scan(layer, x, params)[0] ** 2)


def test_a_scanned_step_on_two_axes():
    params = {
        "up": struct(GRID, (3, 16, 32), None, None, "model"),
        "down": struct(GRID, (3, 32, 16), None, "model", None),
    }
    report = step(jax.grad(scanned), params, struct(GRID, (16, 16), "data"))
    moved = {(c.axes, c.times): c.bytes for c in report.collectives}
    # Activations over `model`, forward and backward; the gradients of a layer over `data`.
    assert moved[("model",), 3] == 4 * 4 * 16
    assert moved[("data",), 3] == 2 * 4 * 16 * 16
    assert report.flops == 3 * 6 * 2 * 4 * 16 * 16
    assert report.compiler_flops < report.flops
    assert report.memory.peak > report.memory.temporaries > 0
    assert {c.line.line for c in report.collectives} == {scanned.__code__.co_firstlineno + 2}


def private_loss(params, x):
    hidden = jnp.tanh(x @ params["up"])
    return jnp.mean((hidden @ params["down"]) ** 2)


@pytest.mark.parametrize("norms", ["gram", "product"])
def test_a_private_step_names_the_lines_of_the_loss(norms):
    params = {"up": struct(GRID, (8, 16), None, "model"), "down": struct(GRID, (16, 8), "model")}
    fn = bevel.clipped_grad(private_loss, l2_clip_norm=1.0, norms=norms)
    report = step(fn, params, struct(GRID, (8, 8), "data"))
    first = private_loss.__code__.co_firstlineno
    summed = [c for c in report.collectives if "data" in c.axes and c.bytes >= 4 * 8 * 8]
    forward = [c for c in report.collectives if c.axes == ("model",) and c.bytes == 4 * 2 * 8]
    assert summed and forward
    assert {c.line.line for c in summed} <= {first + 1, first + 2}
    assert {c.line.line for c in forward} == {first + 2}
    assert {c.line.file for c in report.collectives} == {__file__}


def test_narrow_sums_are_seen_though_the_cpu_widens_them():
    x = struct(mesh(data=8), (16, 32), "data", dtype=jnp.bfloat16)
    (found,) = step(lambda x: x.T @ x, x).collectives
    assert found.is_widened and found.is_narrow_sum
    (found,) = step(lambda x: jnp.sum(x, axis=0), x).collectives  # JAX sums in float32
    assert not found.is_narrow_sum


ABSTRACT = jax.sharding.AbstractMesh((4, 2), ("data", "model"))


MB = 512 * 512 * 2


@pytest.mark.parametrize("text", [GPU_LOOP, GPU_LOOP_OF_UNSTATED_LENGTH])
def test_gpu_text_counts_results_of_starts(text):
    report = inspect_step(text, mesh=ABSTRACT)
    assert rows(report) == [
        ("all-gather", 2 * MB, ("data",), 3),
        ("all-gather", 2 * MB, ("data",), 3),
        ("all-reduce", MB // 4, ("model",), 3),
        ("reduce-scatter", MB, ("data",), 3),
    ]
    assert [c.is_async for c in report.collectives] == [False, True, True, False]
    assert [c.is_narrow_sum for c in report.collectives] == [False, False, True, True]
    assert {str(c.line) for c in report.collectives} == {"/home/me/train.py:17"}
    assert report.totals["all-gather"].count == 6
    assert report.sent == 3 * (2 * 3 / 4 * 2 * MB + MB // 4 + 3 / 4 * MB)


def test_gpu_text_with_wrapped_forms():
    report = inspect_step(GPU_WRAPPED, mesh=ABSTRACT)
    size = 128 * 256 * 4
    assert rows(report) == [
        ("collective-permute", size, ("data",), 1),
        ("all-to-all", size, ("model",), 1),
        ("all-reduce", size, ("model",), 1),
    ]


def test_without_a_mesh_groups_have_a_size():
    report = inspect_step(GPU_WRAPPED)
    assert [(c.axes, c.group_size) for c in report.collectives] == [(None, 2)] * 3
    assert "groups of 2" in str(report)


def test_a_loop_of_unknown_length_is_said_to_be():
    def until(x):
        more = jax.lax.while_loop(
            lambda s: s[0] < 9, lambda s: (jnp.sum(s[1]) + s[0], jnp.sin(s[1])), (jnp.sum(x), x)
        )
        return more[0]

    report = step(until, struct(mesh(data=8), (8, 2), "data"))
    assert report.unknown_loops and "or more" in str(report) and "not known" in str(report)


def test_the_branch_can_be_chosen():
    x = struct(mesh(data=8), (8, 32), "data")

    def either(p, x):
        return jax.lax.cond(p, lambda: jnp.sum(x, axis=0), lambda: jnp.sum(x) * jnp.ones(32))

    compiled = jax.jit(either).lower(jax.ShapeDtypeStruct((), bool), x).compile()
    totals = [inspect_step(compiled, branch=b).bytes for b in (None, 0, 1)]
    assert totals == [128, 4, 128]
    assert "only one branch is counted" in str(inspect_step(compiled))


def test_reports_print_and_convert():
    report = step(lambda x: jnp.sum(x, axis=0), struct(mesh(data=8), (8, 32), "data"))
    text = str(report)
    assert "all-reduce" in text and "f32[32]" in text and "data" in text
    assert "test_collectives.py" in text
    plain = json.loads(json.dumps(report.to_dict()))
    assert plain["collectives"][0]["bytes"] == 128 and plain["totals"]["all-reduce"]["count"] == 1
    assert plain["memory"]["peak"] == report.memory.peak


def test_a_program_that_was_not_compiled_is_refused():
    lowered = jax.jit(jnp.sin).lower(1.0)
    for wrong in (lowered, jnp.sin):
        with pytest.raises(FixArgumentsError, match="lower"):
            inspect_step(wrong)


def test_a_step_on_one_device_moves_nothing():
    report = step(jnp.sin, jnp.ones(3))
    assert report.collectives == [] and report.sent == 0 and report.mesh is None
