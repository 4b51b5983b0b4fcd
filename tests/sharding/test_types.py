"""What the type of an array says about its place."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from bevel.sharding import types

X = np.zeros((8, 4), np.float32)


def mesh_of(kind, shape=(4, 2)):
    return jax.make_mesh(shape, ("data", "model"), axis_types=(kind,) * 2)


@pytest.fixture(scope="module")
def explicit():
    return mesh_of(AxisType.Explicit)


@pytest.fixture(scope="module")
def auto():
    return mesh_of(AxisType.Auto)


def inside_shard_map(body, mesh, check_vma=True):
    """Traces `body` on one shard of X (over "data") and returns what it returned."""
    found = []

    def recording(x):
        found.append(body(x))
        return x

    spec = P("data")
    sharded = jax.shard_map(
        recording, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=check_vma
    )
    jax.eval_shape(sharded, X)
    return found[0]


@pytest.mark.parametrize(
    "entry, axes",
    [
        (None, ()),
        ("data", ("data",)),
        (("data", "model"), ("data", "model")),
        ((), ()),
        (P.UNCONSTRAINED, ()),
    ],
)
def test_an_entry_of_a_spec_names_its_axes(entry, axes):
    assert types.spec_axes(entry) == axes


def test_manual_axes_are_those_of_the_enclosing_shard_map(auto):
    assert types.manual_axes() == ()
    assert set(inside_shard_map(lambda x: types.manual_axes(), auto)) == {"data", "model"}


@pytest.mark.parametrize("check_vma", [True, False])
def test_varying_axes_are_known_where_jax_tracks_them(auto, check_vma):
    def body(x):
        return types.varying_axes(x), types.varying_axes(jnp.zeros(2)), types.varying_axes(3.0)

    sharded, zeros, number = inside_shard_map(body, auto, check_vma)
    assert sharded == ({"data"} if check_vma else set())
    assert zeros == number == set()
    assert types.varying_axes(X) == types.varying_axes(jax.typeof(X)) == set()


@pytest.mark.parametrize("check_vma", [True, False])
def test_whether_jax_tracks_varying_axes_is_known(auto, check_vma):
    tracked = inside_shard_map(lambda x: types.types_track_varying_axes(), auto, check_vma)
    assert tracked == check_vma
    assert not types.types_track_varying_axes()


def test_an_array_is_made_to_vary_over_what_is_missing(auto):
    def body(x):
        both = types.as_varying(x, ("data", "model"))
        return types.varying_axes(both), types.as_varying(x, ("data",)) is x

    varying, unchanged = inside_shard_map(body, auto)
    assert varying == {"data", "model"} and unchanged


def test_only_explicit_meshes_put_shardings_into_types(explicit, auto):
    spec = P("data", "model")
    typed = types.explicit_sharding(jax.device_put(X, NamedSharding(explicit, spec)))
    assert typed.spec == spec
    assert types.explicit_sharding(jax.device_put(X, NamedSharding(auto, spec))) is None
    assert types.explicit_sharding(X) is None and types.explicit_sharding(1.0) is None


def test_explicit_axes_are_told_from_others(explicit, auto):
    assert types.explicit_axes(explicit) == ("data", "model")
    assert types.explicit_axes(auto) == ()
    assert types.explicit_axes(jax.sharding.get_abstract_mesh()) == ()
    mixed = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Explicit, AxisType.Auto))
    assert types.explicit_axes(mixed) == ("data",)


def test_the_explicit_mesh_is_that_of_the_arguments_or_the_context(explicit, auto):
    x = jax.device_put(X, NamedSharding(explicit, P("data")))
    assert types.explicit_mesh([X, x]) == explicit.abstract_mesh
    assert types.explicit_mesh([X, jax.device_put(X, NamedSharding(auto, P("data")))]) is None
    with jax.set_mesh(explicit):
        assert types.explicit_mesh([]) == explicit.abstract_mesh
    with jax.set_mesh(auto):
        assert types.explicit_mesh([X]) is None


def test_zeros_have_the_type_asked_for(explicit, auto):
    def body(x):
        zeros = types.zeros_of_type(jax.typeof(x))
        return zeros.shape, zeros.dtype, types.varying_axes(zeros)

    assert inside_shard_map(body, auto) == ((2, 4), np.float32, {"data"})

    def typed(x):
        return types.zeros_of_type(jax.typeof(x))

    with jax.set_mesh(explicit):
        x = jax.device_put(X, NamedSharding(explicit, P("data", None)))
        assert jax.eval_shape(typed, x).sharding.spec == P("data", None)
    plain = types.zeros_of_type(jax.ShapeDtypeStruct((3,), jnp.bfloat16))
    assert plain.shape == (3,) and plain.dtype == jnp.bfloat16 and not plain.any()


@pytest.mark.parametrize("dropped, shape", [(0, (8, 4)), (1, (4,))])
def test_one_example_keeps_the_explicit_sharding_of_what_is_left(explicit, dropped, shape):
    x = jax.device_put(X, NamedSharding(explicit, P("data", "model")))
    got = types.retyped(x, shape, None, dropped)
    assert got.shape == shape and got.dtype == X.dtype
    assert tuple(got.sharding.spec) == ("data", "model")[dropped:]
    assert got.sharding.mesh == explicit.abstract_mesh
    plain = types.retyped(X, shape, None, dropped)
    assert plain.shape == shape and plain.dtype == X.dtype and plain.sharding is None


def test_a_sharding_is_moved_to_a_mesh_on_which_one_example_fits(explicit):
    small = types.with_axes_of_size_one(explicit.abstract_mesh, ("data",))
    assert dict(small.shape) == {"data": 1, "model": 2}
    assert small.axis_types == explicit.axis_types
    x = jax.device_put(X, NamedSharding(explicit, P("data", "model")))
    got = types.retyped(x, (1, 4), small)
    assert got.sharding.spec == P("data", "model") and got.sharding.mesh == small


def test_one_example_varies_as_its_batch_does(auto):
    def body(x):
        return types.varying_axes(types.retyped(x, (1, 4), None))

    assert inside_shard_map(body, auto) == {"data"}


def test_weak_types_are_kept():
    assert types.retyped(jnp.asarray(2.0), (), None).weak_type
    assert not types.retyped(X, (1, 4), None).weak_type


def test_one_example_of_keys_is_typed():
    keys = jax.random.split(jax.random.key(0), 8)
    got = types.retyped(keys, (1,), None)
    assert got.shape == (1,) and got.dtype == keys.dtype
