"""Operations that take from each example what they find in the others, once `vmap` shows them.

A row here joins every test over `OPERATIONS`.
"""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import hijax
from jax.experimental import pallas as pl
from jax.experimental.buffer_callback import buffer_callback
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

D = 6  # dimensions of an example


def less_the_mean(x):
    """What an operation takes from the examples of a batch once it sees them."""
    return x - jnp.mean(x, axis=0, keepdims=True)


def doubled(x):
    return 2 * x


# Operations on one example; most of them are `doubled` if they see nothing else.


@jax.custom_batching.custom_vmap
def by_rule(x):
    return 2 * x


by_rule.def_vmap(lambda size, batched, x: (2 * less_the_mean(x), batched[0]))


def on_host(x, method):
    shape, dtype = x.shape, x.dtype

    def host(x):
        x = np.asarray(x, dtype)
        return 2 * (x - x.mean(0, keepdims=True)) if x.shape != shape else 2 * x

    return jax.pure_callback(host, jax.ShapeDtypeStruct(shape, x.dtype), x, vmap_method=method)


def on_buffers(x):
    shape = x.shape

    def host(context, out, x):
        out, x = np.asarray(out), np.asarray(x)
        out[...] = 2 * (x - x.mean(0, keepdims=True)) if x.shape != shape else 2 * x

    out = jax.ShapeDtypeStruct(shape, x.dtype)
    return buffer_callback(host, out, vmap_method="expand_dims")(x)


def primitive(name, register):
    """A primitive of the user, whose `rank` says how many dimensions one example has."""
    made = Primitive(name)
    made.def_abstract_eval(lambda x, rank: x)

    def lowered(x, rank):
        return 2 * x if x.ndim == rank else 2 * less_the_mean(x)

    made.def_impl(lowered)
    mlir.register_lowering(made, mlir.lower_fun(lowered, multiple_results=False))
    register(made)
    return lambda x: made.bind(x, rank=x.ndim)


def own_rule(made):
    def rule(args, dims, rank):
        return made.bind(jnp.moveaxis(args[0], dims[0], 0), rank=rank), 0

    batching.primitive_batchers[made] = rule


def random_scale(implementation):
    def scaled(x):
        key = jax.random.key(0, impl=implementation)
        key = jax.random.fold_in(key, jnp.sum(1000 * x).astype(jnp.int32))
        return x * jax.random.normal(key, x.shape, jnp.float32).astype(x.dtype)

    return scaled


def raw_bits(x):
    seed = jnp.sum(1000 * x).astype(jnp.int32).astype(jnp.uint32)
    bits = lax.rng_bit_generator(jnp.broadcast_to(seed, (4,)), x.shape, jnp.uint32)[1]
    return x * (bits % 8).astype(x.dtype)


def with_scratch(x):
    def kernel(x_ref, out_ref, scratch_ref):
        out_ref[...] = x_ref[...] + jnp.nan_to_num(scratch_ref[...])
        scratch_ref[...] = 100 * x_ref[...]

    out = jax.ShapeDtypeStruct(x.shape, x.dtype)
    scratch = [pl.ANY(x.shape, x.dtype)]
    return pl.pallas_call(kernel, out_shape=out, scratch_shapes=scratch, interpret=True)(x)


class Hi(getattr(hijax, "HiPrim", None) or hijax.VJPHiPrimitive):
    def __init__(self, aval):
        self.in_avals, self.out_aval, self.params = (aval,), aval, {}
        super().__init__()

    def expand(self, x):
        return 2 * x

    def vjp_fwd(self, nonzero, x):
        return self(x), None

    def vjp_bwd_retval(self, residuals, g):
        return (2 * g,)

    def batch(self, axis_data, args, dims):
        return 2 * less_the_mean(jnp.moveaxis(args[0], dims[0], 0)), 0


def behind_generic_batching(x):
    """JAX makes a primitive of this whose program is not among its parameters."""
    if "generic_batching" not in inspect.signature(jax.custom_vjp.defvjp).parameters:
        return by_rule(x)
    operation = jax.custom_vjp(by_rule)
    operation.defvjp(lambda x: (by_rule(x), None), lambda _, g: (g,), generic_batching=True)
    return operation(x)


GROUPS, FIRST = jnp.stack([jnp.eye(D), 2 * jnp.eye(D)]), jnp.array([1, 0])
OPERATIONS = {
    "custom_vmap": by_rule,
    "custom_vmap, jvp of it": lambda x: jax.jvp(by_rule, (x,), (x,))[1],
    "pure_callback, expand_dims": lambda x: on_host(x, "expand_dims"),
    "pure_callback, broadcast_all": lambda x: on_host(x, "broadcast_all"),
    "pure_callback, legacy_vectorized": lambda x: on_host(x, "legacy_vectorized"),
    "buffer_callback, expand_dims": on_buffers,
    "primitive with a rule of its own": primitive("coupling", own_rule),
    "primitive with a rule of JAX": primitive("coupling_vectorized", batching.defvectorized),
    "rbg keys": random_scale("rbg"),
    "unsafe_rbg keys": random_scale("unsafe_rbg"),
    "rng_bit_generator": raw_bits,
    "pallas with scratch": with_scratch,
    "hijax": lambda x: Hi(jax.typeof(x))(x),
    "custom_vjp with generic_batching": behind_generic_batching,
}
ALWAYS_ALONE = {  # nothing to change
    "pure_callback, sequential": lambda x: on_host(x, "sequential"),
    "pure_callback, sequential_unrolled": lambda x: on_host(x, "sequential_unrolled"),
    "sequential_vmap": jax.custom_batching.sequential_vmap(lambda x: 2 * x),
    "sequential_vmap of what couples": jax.custom_batching.sequential_vmap(by_rule),
    "threefry keys": random_scale("threefry2x32"),
    "approx_max_k": lambda x: x * lax.approx_max_k(x[0], 2)[0][0],
    "ragged_dot": lambda x: lax.ragged_dot(
        x, x[0, 0] * GROUPS.astype(x.dtype), jnp.where(x[0, 1] > 0, FIRST, 1 - FIRST)
    ),
    "ragged_dot, shared weights": lambda x: lax.ragged_dot(
        x, GROUPS.astype(x.dtype), jnp.where(x[0, 1] > 0, FIRST, 1 - FIRST)
    ),
    "pmap": lambda x: jax.pmap(lambda x: x + lax.pmean(x, "i"), axis_name="i")(x),
    "optimization_barrier": lambda x: 2 * lax.optimization_barrier(x),
}
