"""Buffers are sharded like their leaves: on every mesh, in both memories, in a shard_map."""

import jax
import numpy as np
import pytest
from compare import FULL
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from noise_layouts import (
    AUTO,
    EXPLICIT,
    STDDEV_OF_BITS,
    Decaying,
    bits_as_noise,
    threefry_key,
)

from bevel.noise_addition import (
    gaussian_noise,
    gaussian_privatizer,
    matrix_factorization_privatizer,
    state_specs,
)

G = np.ones((8, 16), np.float32)


@pytest.fixture(autouse=True)
def cheap_noise(monkeypatch):
    monkeypatch.setattr(gaussian_noise, "normal_from_bits", bits_as_noise)


def gaussian(**options):
    return gaussian_privatizer(stddev=STDDEV_OF_BITS, prng_key=threefry_key(5), **options)


def streaming(**options):
    key = threefry_key(5)
    return matrix_factorization_privatizer(Decaying, stddev=STDDEV_OF_BITS, prng_key=key, **options)


def on_host(**options):
    return streaming(buffers_in="host", **options)


CASES = [(AUTO, on_host), (AUTO, streaming), (EXPLICIT, streaming), (EXPLICIT, gaussian)]
CASES += [(EXPLICIT, on_host), (AUTO, gaussian)] if FULL else []


@pytest.mark.parametrize("kind, make", CASES)
def test_results_and_buffers_are_sharded_like_the_gradient(make, kind):
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(kind,) * 2)
    g = jax.device_put(G, NamedSharding(mesh, P("model", "data")))
    privatizer = make()
    for init, update in (
        (privatizer.init, privatizer.update),
        (jax.jit(privatizer.init), jax.jit(privatizer.update, donate_argnums=1)),
    ):
        noised, state = update(g, init(g))
        assert noised.sharding.spec == P("model", "data")
        for buffers in state.buffers:
            assert buffers["last"].sharding.spec == P(None, "model", "data")
            memory = "device" if make is streaming else "pinned_host"
            assert buffers["last"].sharding.memory_kind == memory


def test_buffers_on_the_host_give_the_same_noise():
    plain, other = streaming(), on_host()
    states = [p.init(G) for p in (plain, other)]
    for _ in range(2):
        (expected, states[0]), (found, states[1]) = (
            p.update(G, state) for p, state in zip((plain, other), states, strict=True)
        )
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert states[1].buffers[0]["last"].sharding.memory_kind == "pinned_host"
    assert states[1].buffers[0]["steps"].sharding.memory_kind == "device"


@pytest.mark.parametrize("make", [gaussian, streaming] if FULL else [streaming])
def test_a_state_goes_in_and_out_of_a_shard_map(make):
    plain = make()
    state = plain.init({"g": G})
    for _ in range(2):
        expected, state = plain.update({"g": G}, state)
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AUTO,) * 2)
    specs = {"g": P("model", "data")}
    privatizer = make(specs=specs)
    state = privatizer.init({"g": G})
    state_spec = state_specs(state, {"g": G}, specs)
    step = jax.jit(
        jax.shard_map(
            lambda g, state: privatizer.update(g, state),
            mesh=mesh,
            in_specs=(specs, state_spec),
            out_specs=(specs, state_spec),
        ),
        donate_argnums=1,
    )
    for _ in range(2):
        found, state = step({"g": G}, state)
    np.testing.assert_allclose(found["g"], expected["g"], rtol=1e-6)
    if make is streaming:
        assert state_spec.buffers == ({"last": P(None, "model", "data"), "steps": P()},)
