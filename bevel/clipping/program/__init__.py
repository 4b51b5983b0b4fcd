"""Traces the loss of one example, rewrites its equations and batches it, on any mesh."""
