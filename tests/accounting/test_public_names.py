"""Names of JAX Privacy that `bevel.accounting` exports."""

from bevel import accounting

COMPATIBLE = {
    "dpsgd_event",
    "fixed_dpsgd_event",
    "truncated_dpsgd_event",
    "amplified_bandmf_event",
    "truncated_amplified_bandmf_event",
}


def test_names_of_jax_privacy_are_exported():
    assert set(accounting.__all__) >= COMPATIBLE
