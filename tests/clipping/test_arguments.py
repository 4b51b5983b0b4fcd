"""Bad calls are refused with what to write instead; good ones reach the loss as written."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bevel import clipped_grad
from bevel.clipping import arguments
from bevel.clipping.arguments import ByIdentity, CallSplitter, Leaves, Role, split_call
from bevel.clipping.options import Clip, Task
from bevel.errors import FixArgumentsError

X = np.arange(6, dtype=np.float32).reshape(3, 2) / 4
W = jnp.array([1.0, -2.0])


def loss(w, x):
    return jnp.mean((x @ w) ** 2)


def split(*args, argnums=0, batch_argnums=1, prng_argnum=None, **kwargs):
    task = Task(loss, Clip(1.0), argnums, batch_argnums, prng_argnum=prng_argnum)
    return split_call(task, args, kwargs)


def gradient(w=W, x=X):
    return sum(jax.grad(loss)(w, x[i : i + 1]) for i in range(len(x)))


@pytest.mark.parametrize(
    "numbers, message",
    [
        ({"argnums": 1}, "argnums and batch_argnums both name argument 1.*its own number"),
        ({"argnums": -1, "batch_argnums": 2}, "argnums and batch_argnums both name argument 2"),
        ({"argnums": (0, 2), "prng_argnum": 2}, "argnums and prng_argnum both name argument 2"),
        ({"prng_argnum": -2}, "batch_argnums and prng_argnum both name argument 1"),
    ],
)
def test_roles_do_not_overlap(numbers, message):
    with pytest.raises(FixArgumentsError, match=message):
        split(W, X, jax.random.key(0), **numbers)


@pytest.mark.parametrize("number", [2, -3])
@pytest.mark.parametrize("name", ["argnums", "batch_argnums", "prng_argnum"])
def test_numbers_beyond_the_call_are_refused(name, number):
    with pytest.raises(FixArgumentsError, match=rf"{name}=.* the call has 2 positional arguments"):
        split(W, X, **{name: number})


def test_batch_given_by_name_is_refused_with_the_way_out():
    with pytest.raises(FixArgumentsError, match="Pass that argument by position"):
        clipped_grad(loss, l2_clip_norm=1.0)(W, x=X)


def test_negative_numbers_count_from_the_end():
    call, leaves = split(X, W, argnums=-1, batch_argnums=-2)
    assert call.roles == (Role.BATCH, Role.PARAM)
    assert leaves.params == [W] and leaves.batch[0] is X
    got = clipped_grad(lambda x, w: loss(w, x), -1, batch_argnums=-2, l2_clip_norm=1e9)(X, W)
    np.testing.assert_allclose(got, gradient(), rtol=1e-5)


def test_argument_numbers_may_come_in_any_order():
    def product(a, b, x):
        return jnp.mean(x) * (a + 10 * b)

    fn = clipped_grad(product, argnums=(1, 0), batch_argnums=2, l2_clip_norm=1e9)
    expected = jax.grad(product, argnums=(1, 0))(1.0, 2.0, jnp.ones(1))
    np.testing.assert_allclose(fn(1.0, 2.0, jnp.ones(1)), expected)


def test_an_argument_number_given_twice_is_refused():
    with pytest.raises(FixArgumentsError, match="argnums"):
        clipped_grad(loss, argnums=(0, 0), l2_clip_norm=1.0)(W, X)


@pytest.mark.parametrize("empty", [{}, (), None, [{}]])
def test_batch_arguments_without_arrays_are_refused(empty):
    with pytest.raises(FixArgumentsError, match=r"hold no arrays.*Point batch_argnums at the data"):
        clipped_grad(lambda w, x: jnp.sum(w), l2_clip_norm=1.0)(W, empty)


def test_unequal_leading_sizes_are_refused():
    with pytest.raises(FixArgumentsError, match=r"different leading sizes \[3, 4\].*one row per"):
        clipped_grad(loss, l2_clip_norm=1.0)(W, {"a": X, "b": np.zeros(4)})


@pytest.mark.parametrize("leaf", [1.0, 3, True, "text", np.float32(2), jnp.zeros(())])
def test_batch_leaves_without_a_leading_axis_are_refused(leaf):
    message = r"argument 1\['b'\] is split into examples.*no leading axis.*out of batch_argnums"
    with pytest.raises(FixArgumentsError, match=message):
        split(W, {"a": X, "b": leaf})


@pytest.mark.parametrize(
    "leaf, message",
    [
        (np.arange(2), "has dtype int.*Cast it to a float dtype"),
        (3, "has dtype int.*outside argnums"),
        (np.ones(2, np.complex64), "has dtype complex64"),
        (1j, "has dtype complex"),
        (np.ones(2, bool), "has dtype bool"),
        (True, "is a bool, which has no gradient. Split the model"),
        ("relu", "is a str, which has no gradient.*outside argnums"),
        (jax.random.key(0), "has dtype key"),
    ],
)
def test_parameters_without_a_real_gradient_are_refused_by_their_path(leaf, message):
    with pytest.raises(FixArgumentsError, match=rf"argument 0\['layers'\]\[1\] {message}"):
        split({"layers": [W, leaf]}, X)


@pytest.mark.parametrize(
    "mask", [np.zeros(2, bool), np.zeros((3, 1), bool), np.zeros(3, np.int32), True]
)
def test_masks_of_wrong_shape_or_dtype_are_refused(mask):
    with pytest.raises(FixArgumentsError, match=r"pass a bool array of shape \(3,\), True where"):
        clipped_grad(loss, l2_clip_norm=1.0)(W, X, is_padding_example=mask)


def test_a_mask_may_be_a_list():
    fn = clipped_grad(loss, l2_clip_norm=1e9)
    got = fn(W, X, is_padding_example=[False, False, True])
    np.testing.assert_allclose(got, gradient(x=X[:2]), rtol=1e-5)


def test_a_key_argument_that_is_no_key_is_refused():
    with pytest.raises(FixArgumentsError, match="prng_argnum"):
        clipped_grad(lambda w, x, k: loss(w, x), l2_clip_norm=1.0, prng_argnum=2)(W, X, 0)


def test_python_values_stay_python_values_inside_the_loss():
    seen = {}

    def remembering(w, x, flag, config, *, mode, act, nothing, number):
        seen.update(flag=flag, config=config, mode=mode, act=act, nothing=nothing, number=number)
        return act(loss(w, x)) * number if flag and mode == "train" else 0.0

    fn = clipped_grad(remembering, l2_clip_norm=1e9)
    config = {"name": "mlp", "bias": False, "rate": None}
    got = fn(W, X, True, config, mode="train", act=jnp.abs, nothing=None, number=2.0)
    assert seen["flag"] is True and seen["act"] is jnp.abs and seen["nothing"] is None
    assert seen["config"] == config and seen["mode"] == "train"
    assert isinstance(seen["number"], jax.core.Tracer)  # a new number is no new program
    np.testing.assert_allclose(got, 2 * gradient(), rtol=1e-5)


def test_values_without_a_hash_work():
    fn = clipped_grad(lambda w, x, names: len(names) * loss(w, x), l2_clip_norm=1e9)
    np.testing.assert_allclose(fn(W, X, {"a", "b"}), 2 * gradient(), rtol=1e-5)
    call, _ = split(W, X, {"a"})
    assert isinstance(call.statics[0], ByIdentity) and hash(call) is not None


def test_a_value_without_a_hash_that_changed_in_place_is_seen():
    fn = clipped_grad(lambda w, x, names: len(names) * loss(w, x), l2_clip_norm=1e9)
    names = {"a"}
    fn(W, X, names)
    names.add("b")
    np.testing.assert_allclose(fn(W, X, names), 2 * gradient(), rtol=1e-5)


def test_several_batch_arguments_may_be_trees():
    def pair(w, inputs, scale, targets):
        return scale * jnp.mean((inputs["x"] @ w - targets[0]) ** 2)

    y = jnp.array([1.0, 2.0, 3.0])
    fn = clipped_grad(pair, batch_argnums=(1, 3), l2_clip_norm=1e9)
    expected = sum(
        jax.grad(pair)(W, {"x": X[i : i + 1]}, 2.0, [y[i : i + 1]]) for i in range(len(X))
    )
    np.testing.assert_allclose(fn(W, {"x": X}, 2.0, [y]), expected, rtol=1e-5)


def test_batch_leaves_may_be_keys():
    def noisy(w, x, key):
        return jnp.mean(x @ w) * jax.random.uniform(key[0])

    keys = jax.random.split(jax.random.key(1), len(X))
    fn = clipped_grad(noisy, batch_argnums=(1, 2), l2_clip_norm=1e9)
    expected = sum(X[i] * jax.random.uniform(keys[i]) for i in range(len(X)))
    np.testing.assert_allclose(fn(W, X, keys), expected, rtol=1e-5)


def test_named_arguments_pass_through_as_arrays_or_values():
    fn = clipped_grad(lambda w, x, *, scale, power: scale * loss(w, x) ** power, l2_clip_norm=1e9)
    got = fn(W, X, power=1, scale=jnp.array(3.0))
    np.testing.assert_allclose(got, 3 * gradient(), rtol=1e-5)


def test_a_call_is_put_together_again_in_order():
    call, leaves = split({"b": W, "a": 2.0}, X, "mode", flag=True, temperature=0.5)
    doubled = Leaves(*([2 * x for x in group] for group in leaves))
    args, kwargs = call.arguments(doubled)
    assert args[0]["a"] == 4.0 and args[2] == "mode"
    assert kwargs == {"flag": True, "temperature": 1.0}
    assert call.param_paths == ("argument 0['a']", "argument 0['b']")


def test_a_call_like_an_earlier_one_is_not_checked_again(monkeypatch):
    """Eager calls with many parameters would otherwise spend more time on checks than in JAX."""
    task = Task(loss, Clip(1.0), (2, 0), 1)
    splitter, args = CallSplitter(task), (W, X, {"a": W + 1, "b": W + 2})
    first = splitter.split(args, {"scale": 2.0})
    assert first[0] == split_call(task, args, {"scale": 2.0})[0]
    monkeypatch.setattr(arguments, "split_call", None)
    again = splitter.split(jax.tree.map(lambda x: x * 2, args), {"scale": 3.0})
    assert again[0] is first[0] and again[1].constants == [3.0]
    jax.tree.map(np.testing.assert_array_equal, again[1].params, [2 * x for x in first[1].params])
    jax.tree.map(np.testing.assert_array_equal, again[1].batch, [2 * X])


def test_python_values_and_other_shapes_are_checked_at_every_call():
    splitter = CallSplitter(Task(loss, Clip(1.0), 0, 1))
    for flag in (True, False):
        assert splitter.split((W, X, flag), {})[0].statics == (flag,)
    splitter.split((W, X), {})
    with pytest.raises(FixArgumentsError, match="no leading axis"):
        splitter.split((W, X[0, 0]), {})
    with pytest.raises(FixArgumentsError, match="no real gradient"):
        splitter.split((W.astype(int), X), {})
