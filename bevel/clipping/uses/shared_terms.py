"""Terms of the loss that are the same for every example, such as weight decay.

Such a term is a scalar s that depends on parameters alone and is combined with the example, for
instance added to its loss. Let s_i be the derivative of example i's loss with respect to s, and let
R = ds/dp. The gradient of a parameter p that has other uses too is

    G_i = T_i + s_i R,    |G_i|^2 = |T_i|^2 + 2 s_i <T_i, R> + s_i^2 |R|^2,

where T_i comes from the other uses. R is computed once. The equation y = f(h, w) of a use is linear
in w, so <T_i, R> = <f(h_i, R), g_i>, and no per-example gradient is formed.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

from bevel import precision
from bevel.clipping.norms.materialised import staged_sum
from bevel.clipping.norms.registry import SEPARATE, Norm
from bevel.clipping.norms.scaling import exponent, power_of_two, root, scale_back
from bevel.clipping.norms.weighting import mask_examples
from bevel.clipping.program.equations import bind, body_of_call
from bevel.clipping.uses.combinations import apply_view
from bevel.clipping.uses.views import shape_of

Path = tuple[int, ...]


class SharedTerm(NamedTuple):
    """A scalar output, of the equation at `path`, that depends on parameters alone."""

    path: Path
    output: int
    shape: tuple[int, ...]
    dtype: np.dtype


def derivative(
    program: ClosedJaxpr, term: SharedTerm, param: int, params: Sequence[Any]
) -> jax.Array:
    """R, the derivative of a term with respect to one parameter.

    The parameters are the first inputs of the program.
    """

    def value(own: Any) -> jax.Array:
        inputs = dict(enumerate(params)) | {param: own}
        return jnp.sum(_evaluate_term(program, term, inputs))

    return jax.grad(value)(params[param])


def _evaluate_term(program: ClosedJaxpr, term: SharedTerm, inputs: dict[int, Any]) -> jax.Array:
    """The value of a term, evaluating only the equations and inputs that it depends on."""
    jaxpr, consts, path = program.jaxpr, program.consts, term.path
    while True:
        env = dict(zip(jaxpr.constvars, consts, strict=True))
        env |= {jaxpr.invars[i]: x for i, x in inputs.items()}
        at, eqn = _find(jaxpr, path[0])
        call = body_of_call(eqn) if path[1:] else None
        if call is None:
            return _evaluate_slice(jaxpr.eqns[: at + 1], env, [eqn.outvars[term.output]])[0]
        path = path[1:]
        wanted = _inputs_needed(call.jaxpr, path)
        values = _evaluate_slice(jaxpr.eqns[:at], env, [eqn.invars[i] for i in wanted])
        jaxpr, consts, inputs = call.jaxpr, call.consts, dict(zip(wanted, values, strict=True))


def _find(jaxpr: Jaxpr, eqn_id: int) -> tuple[int, JaxprEqn]:
    ((at, eqn),) = ((i, eqn) for i, eqn in enumerate(jaxpr.eqns) if id(eqn) == eqn_id)
    return at, eqn


def _inputs_needed(jaxpr: Jaxpr, path: Path) -> list[int]:
    """The inputs of a program that the equation at `path` depends on."""
    at, eqn = _find(jaxpr, path[0])
    call = body_of_call(eqn) if path[1:] else None
    own: Sequence[Any] = eqn.invars
    if call is not None:
        own = [eqn.invars[i] for i in _inputs_needed(call.jaxpr, path[1:])]
    _, needed = _slice_of(jaxpr.eqns[:at], own)
    return [i for i, v in enumerate(jaxpr.invars) if v in needed]


def _slice_of(eqns: Sequence[JaxprEqn], wanted: Sequence[Any]) -> tuple[list[JaxprEqn], set[Any]]:
    """The equations that `wanted` depends on, and all variables in them."""
    needed = {v for v in wanted if not isinstance(v, Literal)}
    result = []
    for eqn in reversed(eqns):
        if needed & set(eqn.outvars):
            needed |= {v for v in eqn.invars if not isinstance(v, Literal)}
            result.append(eqn)
    return result[::-1], needed


def _evaluate_slice(
    eqns: Sequence[JaxprEqn], env: dict[Any, Any], wanted: Sequence[Any]
) -> list[Any]:
    """The values of `wanted`, computed from those in `env`."""

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else env[atom]

    for eqn in _slice_of(eqns, wanted)[0]:
        env.update(zip(eqn.outvars, bind(eqn, [read(v) for v in eqn.invars]), strict=True))
    return [read(v) for v in wanted]


def _inner_product(use: Any, h: Sequence[Any], g: Any, derivative: jax.Array) -> tuple[Any, Any]:
    """<T_i, R> for every example, and a bound on its rounding error."""
    weight = apply_view(use.view, derivative)
    others = use.rule.others(use.eqn, use.operand)
    wide = precision.accumulation_dtype(g.dtype)

    def products(h: Sequence[Any], g: Any, weight: Any) -> Any:
        inputs: list[Any] = [None] * len(use.eqn.invars)
        for i, x in zip(others, h, strict=True):
            inputs[i] = x
        inputs[use.operand] = weight
        full = {"precision": jax.lax.Precision.HIGHEST, "preferred_element_type": wide}
        full = {k: v for k, v in full.items() if k in use.eqn.params}
        return bind(use.eqn, inputs, in_its_context=False, **full)[0] * g

    for kind, _ in reversed(use.loops):
        products = jax.vmap(products, in_axes=(0, 0, 0 if kind == SEPARATE else None))
    products = jax.vmap(products, in_axes=(0, 0, None))

    def widened(x: Any) -> Any:
        return x.astype(wide) if jnp.issubdtype(x.dtype, jnp.floating) else x

    def absolute(x: Any) -> Any:
        return jnp.abs(x) if jnp.issubdtype(x.dtype, jnp.floating) else x

    h, g, weight = [widened(x) for x in h], widened(g), widened(weight)
    total, terms = staged_sum(products(h, g, weight))
    largest, _ = staged_sum(products([absolute(x) for x in h], absolute(g), absolute(weight)))
    # No product has more terms than the operand has entries.
    terms += math.prod(shape_of(use.eqn.invars[use.operand]))
    return total, largest * precision.rounding_growth(terms + 16, wide)


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["scales", "derivatives", "inner_products"],
    meta_fields=[],
)
@dataclasses.dataclass(frozen=True)
class SharedTermGradients:
    """What the shared terms add to one parameter's gradients: sum_f s_f R_f."""

    scales: list[Any]  # s_f, (B,)
    derivatives: list[Any]  # R_f, in the shape of the parameter
    inner_products: list[tuple[Any, Any]]  # <T, R_f> and its error, (B,)

    def norm(self, norm: Norm) -> Norm:
        """The norms of T + sum_f s_f R_f, given those of T."""
        squares = [staged_sum(jnp.square(r)[None]) for r in self.derivatives]
        growth = precision.rounding_growth(
            max(terms for _, terms in squares) + 16, norm.upper.dtype
        )
        own = [root(square) * (1 + growth) for square, _ in squares]
        pairs = zip(self.scales, own, strict=True)
        largest = functools.reduce(jnp.maximum, [jnp.abs(s) * r for s, r in pairs], norm.upper)
        e = exponent(largest)
        down = power_of_two(-e, largest.dtype)
        estimate, upper = norm.estimate * down, norm.upper * down
        scales = [s * down for s in self.scales]
        square, error = estimate * estimate, (upper - estimate) * (upper + estimate)
        small = 16 * precision.unit_roundoff(upper.dtype)
        for f, (s, (inner, off)) in enumerate(zip(scales, self.inner_products, strict=True)):
            inner, off = inner * down, off * down
            square += 2 * s * inner + s * s * squares[f][0]
            error += 2 * jnp.abs(s) * (off + small * jnp.abs(inner)) + s * s * own[f] ** 2 * growth
            for i in range(f):
                both, _ = staged_sum((self.derivatives[f] * self.derivatives[i])[None])
                square += 2 * s * scales[i] * both
                error += 2 * jnp.abs(s * scales[i]) * own[f] * own[i] * growth
        square = jnp.maximum(square, 0)
        # Rounding moves the whole contribution by as much as it moves T.
        bound = root(square + error * (1 + small)) * (1 + small) + (upper - estimate)
        return Norm(scale_back(root(square), e), scale_back(bound * (1 + small), e))

    def weighted_sum(self, factor: jax.Array, keep: Any) -> jax.Array:
        """`sum_b factor[b] sum_f s_f[b] R_f`."""
        parts = []
        for s, r in zip(self.scales, self.derivatives, strict=True):
            dtype = precision.accumulation_dtype(s.dtype, factor.dtype, r.dtype)
            weight = jnp.sum(factor.astype(dtype) * mask_examples(keep, s).astype(dtype))
            parts.append(weight * r.astype(dtype))
        return sum(parts[1:], parts[0])


def shared_term_gradients(
    scales: Sequence[Any], derivatives: Sequence[Any], uses: Sequence[tuple[Any, Any]]
) -> SharedTermGradients:
    """From the s_f, the R_f, and each other use with its tap reading."""
    wide = precision.accumulation_dtype(*(x.dtype for x in (*scales, *derivatives)))
    derivatives = [r.astype(wide) for r in derivatives]
    inner_products = []
    for r in derivatives:
        parts = [_inner_product(use, reading.h, reading.g, r) for use, reading in uses]
        total, off = (sum(x[1:], x[0]) for x in zip(*parts, strict=True))
        inner_products.append((total.astype(wide), off.astype(wide)))
    scales = [s.reshape(s.shape[0]).astype(wide) for s in scales]
    return SharedTermGradients(scales, derivatives, inner_products)
