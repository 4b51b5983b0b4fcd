"""Factorizations A = B C of a workload: noise C^-1 z costs less error than independent noise."""

from bevel.matrix_factorization import banded as banded
from bevel.matrix_factorization import buffered_toeplitz as buffered_toeplitz
from bevel.matrix_factorization import dense as dense
from bevel.matrix_factorization import optimization as optimization
from bevel.matrix_factorization import sensitivity as sensitivity
from bevel.matrix_factorization import streaming_matrix as streaming_matrix
from bevel.matrix_factorization import toeplitz as toeplitz
from bevel.matrix_factorization import tree_aggregation as tree_aggregation
from bevel.matrix_factorization.choose import Candidate as Candidate
from bevel.matrix_factorization.choose import Choice as Choice
from bevel.matrix_factorization.choose import choose_mechanism as choose_mechanism
from bevel.matrix_factorization.streaming_matrix import StreamingMatrix as StreamingMatrix
