"""Factorizations A = B C of a workload: noise C^-1 z costs less error than independent noise."""

from bevel.matrix_factorization import streaming_matrix as streaming_matrix
from bevel.matrix_factorization.streaming_matrix import StreamingMatrix as StreamingMatrix
