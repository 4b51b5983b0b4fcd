"""Program digests are equal on every mesh, and differ for different programs."""

import functools
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from bevel.sharding import make_mesh
from bevel.training.program_digest import derivative_digest, program_digest

X = jax.ShapeDtypeStruct((8, 4), jnp.float32)


def digest(function, *types):
    return program_digest(jax.make_jaxpr(function)(*(types or (X,))))


def loss(x, scale=2.0, axis=0):
    return jnp.sum(jnp.tanh(x) * jnp.float32(scale), axis=axis)


def test_the_same_program_has_the_same_digest():
    assert digest(loss) == digest(lambda x: loss(x))
    assert digest(loss) != digest(loss, jax.ShapeDtypeStruct((8, 5), jnp.float32))


@pytest.mark.parametrize(
    "other",
    [
        functools.partial(loss, scale=2.5),
        functools.partial(loss, axis=1),
        lambda x: loss(jnp.sin(x)),
        lambda x: loss(x) + jnp.asarray(np.arange(4.0), jnp.float32),
    ],
)
def test_another_literal_parameter_equation_or_constant_is_another_program(other):
    assert digest(loss) != digest(other)


def test_constants_count_by_their_values():
    def with_table(table):
        table = np.asarray(table, np.float32)
        return digest(lambda x: x * jnp.asarray(table))

    ones = np.ones((8, 4))
    assert with_table(ones) == with_table(ones) != with_table(ones * 2)


def test_inner_programs_count():
    def scanned(scale):
        body = lambda c, x: (c + scale * x.sum(), None)  # noqa: E731
        return digest(lambda x: jax.lax.scan(body, jnp.float32(0), x)[0])

    assert scanned(jnp.float32(2)) == scanned(jnp.float32(2)) != scanned(jnp.float32(3))


def test_sharding_constraints_do_not_count():
    def constrained(axes, spec):
        sharding = NamedSharding(make_mesh(axes), spec)
        return digest(lambda x: loss(jax.lax.with_sharding_constraint(x, sharding)))

    one = constrained("data=8", P("data"))
    assert one == constrained("data=4,model=2", P("data", "model")) == digest(loss)


def test_no_address_is_in_a_digest():
    def made():
        @jax.custom_jvp
        def f(x):
            return x * 2

        @f.defjvp
        def rule(primals, tangents):
            return f(*primals), tangents[0] * 2

        return digest(lambda x: f(x).sum())

    assert made() == made()


def test_rules_of_custom_derivatives_count_in_a_derivative():
    def with_vjp(scale):
        @jax.custom_vjp
        def f(x):
            return x * 2

        f.defvjp(lambda x: (f(x), None), lambda _, g: (g * scale,))
        return jax.make_jaxpr(lambda x: f(x).sum())(X)

    def with_jvp(scale):
        @jax.custom_jvp
        def f(x):
            return x * 2

        @f.defjvp
        def rule(primals, tangents):
            return f(*primals), tangents[0] * scale

        return jax.make_jaxpr(lambda x: f(x).sum())(X)

    for made in (with_vjp, with_jvp):
        one, same, other = (derivative_digest(made(scale)) for scale in (2.0, 2.0, 0.0))
        assert one and one == same != other
    cannot = jax.make_jaxpr(lambda x: jax.lax.while_loop(lambda y: y.sum() < 9, lambda y: y + 1, x))
    assert derivative_digest(cannot(X)) == ""


def test_a_digest_is_the_same_in_another_process():
    code = (
        "import jax, jax.numpy as jnp\n"
        "from bevel.training.program_digest import program_digest, derivative_digest\n"
        "@jax.custom_vjp\n"
        "def f(x):\n    return x * 2\n"
        "f.defvjp(lambda x: (f(x), None), lambda _, g: (g * 3.0,))\n"
        "loss = lambda x: jax.nn.gelu(f(x)).sum() + jax.nn.logsumexp(x)\n"
        "traced = jax.make_jaxpr(jax.checkpoint(loss))(jnp.ones((3, 2)))\n"
        "print(program_digest(traced), derivative_digest(traced))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed, "JAX_PLATFORMS": "cpu"},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1
