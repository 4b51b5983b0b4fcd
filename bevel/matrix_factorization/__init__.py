"""Factorizations A = B C of a workload: noise C^-1 z costs less error than independent noise."""

from bevel.matrix_factorization import (
    banded,
    buffered_toeplitz,
    dense,
    optimization,
    sensitivity,
    streaming_matrix,
    toeplitz,
    tree_aggregation,
)
from bevel.matrix_factorization.choose_mechanism import (
    Candidate,
    Choice,
    choose_mechanism,
)
from bevel.matrix_factorization.streaming_matrix import StreamingMatrix

__all__ = [
    "banded",
    "buffered_toeplitz",
    "dense",
    "optimization",
    "sensitivity",
    "streaming_matrix",
    "toeplitz",
    "tree_aggregation",
    "Candidate",
    "Choice",
    "choose_mechanism",
    "StreamingMatrix",
]
