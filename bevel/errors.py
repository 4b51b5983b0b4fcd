"""Exceptions, named after what the user must do.

All are `ValueError`s, so code written against JAX Privacy keeps catching them.
"""


class BevelError(ValueError):
    """Base of every error that bevel raises on purpose."""


class FixArgumentsError(BevelError):
    """An argument or option is wrong: the message says what to write instead."""


class FixLossError(BevelError):
    """The loss cannot be followed for one example: the message names the place and the way out."""


class PadBatchError(BevelError):
    """The batch does not fit the mesh or the microbatch: pad it and mark the padding."""


class MoveCollectiveError(BevelError):
    """The loss communicates over an axis that carries the batch: move that out of the loss."""


class RestoreLedgerError(BevelError):
    """The ledger is damaged, or not the one that belongs to the run: restore the right file."""


class StopRunError(BevelError):
    """Going on would exceed the privacy budget: stop here, nothing was charged."""


class FixDataError(BevelError):
    """The data cannot be read, or is not what the plan was made for: the message says what."""


class RestoreCheckpointError(BevelError):
    """A run cannot go on from what is in its folder: restore what the message names."""


class FreeSpaceError(BevelError):
    """The disk is full: free space and start again; the run goes on from its last checkpoint."""
