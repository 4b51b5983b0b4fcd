"""Pallas kernels for GPUs, each with the same computation in plain XLA."""
