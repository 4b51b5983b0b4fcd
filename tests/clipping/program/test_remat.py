"""The remats of a program are found, and policies that offload are seen."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from bevel.clipping.program.remat import offloads, remats

X = jnp.linspace(0.1, 1.0, 6)


def named(x):
    return jnp.sin(checkpoint_name(jnp.tanh(x), "kept"))


PROGRAMS = {
    "alone": jax.checkpoint(named),
    "in a scan": lambda x: lax.scan(lambda h, _: (jax.checkpoint(named)(h), None), x, None, 3)[0],
    "in a branch": lambda x: lax.cond(x[0] > 0, jax.checkpoint(named), jnp.cos, x),
    "in a jit": jax.jit(jax.checkpoint(named)),
    "with a policy": jax.checkpoint(
        named, policy=jax.checkpoint_policies.save_only_these_names("kept")
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_remat_is_found_wherever_it_is(name):
    jaxpr = jax.make_jaxpr(PROGRAMS[name])(X).jaxpr
    (remat,) = remats(jaxpr)
    assert not offloads(remat)


def test_a_program_without_remat_has_none():
    assert not list(remats(jax.make_jaxpr(named)(X).jaxpr))


def offloading(name):
    """A policy that moves the values of this name to the host."""
    return jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=[name],
        offload_src="device",
        offload_dst="pinned_host",
    )


def test_offloading_is_seen():
    for function in (named, jax.jit(named)):
        rematerialised = jax.checkpoint(function, policy=offloading("kept"))
        (remat,) = remats(jax.make_jaxpr(rematerialised)(X).jaxpr)
        assert offloads(remat)
