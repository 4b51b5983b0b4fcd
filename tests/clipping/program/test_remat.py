"""A program without its remats computes the same, and policies that offload are seen."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from bevel.clipping.program.remat import offloads, remats, without_remat

X = jnp.linspace(0.1, 1.0, 6)


def named(x):
    return jnp.sin(checkpoint_name(jnp.tanh(x), "kept"))


def in_branch(x):
    return lax.cond(x[0] > 0, jax.checkpoint(named), jnp.cos, x)


PROGRAMS = {
    "alone": jax.checkpoint(named),
    "nested": jax.checkpoint(lambda x: jax.checkpoint(named)(x) * x),
    "in a scan": lambda x: lax.scan(lambda h, _: (jax.checkpoint(named)(h), None), x, None, 3)[0],
    "in a branch": in_branch,
    "in a jit": jax.jit(jax.checkpoint(named)),
    "with a policy": jax.checkpoint(
        named, policy=jax.checkpoint_policies.save_only_these_names("kept")
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_without_remat_the_values_and_derivatives_are_the_same(name):
    program = jax.make_jaxpr(PROGRAMS[name])(X)
    plain = without_remat(program)
    assert any(remats(program.jaxpr)) and not any(remats(plain.jaxpr))

    def run(own):
        return lambda x: jnp.sum(jax.core.eval_jaxpr(own.jaxpr, own.consts, x)[0])

    for function in (lambda f: f, jax.grad):
        expected, found = (function(run(own))(X) for own in (program, plain))
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_a_program_without_remat_stays_as_it_is():
    program = jax.make_jaxpr(named)(X)
    assert without_remat(program) is program


def test_offloading_is_seen():
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=["kept"],
        offload_src="device",
        offload_dst="pinned_host",
    )
    moved = jax.make_jaxpr(jax.checkpoint(named, policy=policy))(X)
    assert offloads(moved.jaxpr)
    assert not any(offloads(jax.make_jaxpr(f)(X).jaxpr) for f in PROGRAMS.values())
