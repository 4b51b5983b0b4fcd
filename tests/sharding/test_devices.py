"""Arrays that JAX would not compute with together are named, with the fix."""

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import bevel
from bevel.errors import FixArgumentsError
from bevel.sharding import check_devices, make_mesh, place

DEVICES = jax.devices()
X = np.arange(64.0, dtype=np.float32).reshape(8, 8)
PERMUTED = [DEVICES[i] for i in (0, 1, 2, 3, 6, 7, 4, 5)]

# The two that "Distributed arrays" shows, and what Explicit axes add.
DISAGREEING = {
    "sets": (
        Mesh(DEVICES[:4], "x"),
        Mesh(DEVICES[4:], "x"),
        "different devices: a mesh x=4 of devices 0 to 3 and a mesh x=4 of devices 4 to 7",
    ),
    "orders": (
        Mesh(DEVICES, "x"),
        Mesh(PERMUTED, "x"),
        "the same devices in different orders: a mesh x=8 of devices 0 to 7 and a mesh x=8 of "
        "devices 0 to 3, 6 to 7, 4 to 5",
    ),
    "explicit": (
        make_mesh("x=8", axis_types="explicit"),
        make_mesh("x=4,y=2", axis_types="explicit"),
        "different meshes, and Explicit axes are part",
    ),
}


@pytest.mark.parametrize("case", DISAGREEING)
def test_the_error_names_both_and_the_fix(case):
    one, other, message = DISAGREEING[case]
    y, z = (jax.device_put(X, NamedSharding(mesh, P("x"))) for mesh in (one, other))
    with pytest.raises(ValueError):
        y + z
    with pytest.raises(FixArgumentsError) as error:
        check_devices({"w": y}, z)
    assert "argument 0 at 'w' of shape (8, 8) and argument 1 of shape (8, 8)" in str(error.value)
    assert message in str(error.value)
    assert "bevel.sharding.place(tree, mesh, rules)" in str(error.value)
    y, z = place((y, z), one, P("x"))
    check_devices(y, z)
    np.testing.assert_array_equal(y + z, 2 * X)


def test_what_jax_accepts_is_accepted():
    on_8 = jax.device_put(X, NamedSharding(make_mesh("data=8"), P("data")))
    on_42 = jax.device_put(X, NamedSharding(make_mesh("data=4,model=2"), P("data", "model")))
    anywhere = jax.numpy.ones((8, 8))
    check_devices(on_8, [on_42, anywhere, X, 1.0, None])
    np.testing.assert_array_equal(on_8 + on_42 + anywhere, 2 * X + 1)
    jax.jit(lambda a, b: check_devices(a, b))(on_8, on_42)
    check_devices()


def test_one_device_is_not_the_mesh():
    mesh = make_mesh("data=8")
    one = jax.device_put(X, DEVICES[3])
    with pytest.raises(FixArgumentsError, match=r"the mesh and argument 0 of shape .* device 3"):
        check_devices(one, mesh=mesh)
    check_devices(place(one, mesh), mesh=mesh)
    struct = jax.ShapeDtypeStruct((8,), np.float32, sharding=NamedSharding(mesh, P("data")))
    with pytest.raises(FixArgumentsError, match="different devices"):
        check_devices(struct, one)


def test_clipping_says_it_of_its_parameters_and_batch():
    params = {"w": place(X, make_mesh("data=4"), P())}
    batch = place(X, make_mesh("data=8"), P("data"))

    def loss(params, x):
        return jax.numpy.mean((x @ params["w"]) ** 2)

    fn = bevel.clipped_grad(loss, l2_clip_norm=1.0)
    with pytest.raises(FixArgumentsError, match=r"parameters at '0' of shape \(8, 8\) and batch"):
        fn(params, batch)
    fn(place(params, make_mesh("data=8")), batch)
