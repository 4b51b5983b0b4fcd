"""Exceptions, each named after what you have to do.

All of them are `ValueError`s, so code written for JAX Privacy still catches them.
"""


class BevelError(ValueError):
    """Base class of all errors that bevel raises on purpose."""


class FixArgumentsError(BevelError):
    """An argument or option is invalid. The message says what to pass instead."""


class FixLossError(BevelError):
    """The loss cannot be traced for one example. The message says where, and what to change."""


class PadBatchError(BevelError):
    """The batch size does not fit the mesh or the microbatches. Pad it and mark the padding."""


class MoveCollectiveError(BevelError):
    """The loss communicates over a mesh axis of the batch. Move the collective out of the loss."""


class RestoreLedgerError(BevelError):
    """The ledger is damaged or belongs to another run. Restore the right file."""


class StopRunError(BevelError, RuntimeError):
    """The next step would exceed the privacy budget. Stop here: nothing was charged.

    Also a `RuntimeError`, which users of `jax_privacy.keras_api` expect.
    """


class FixDataError(BevelError):
    """The data cannot be read, or does not match the plan. The message says why."""


class RestoreCheckpointError(BevelError):
    """The run cannot resume from its folder. Restore what the message names."""


class InstallExtraError(ImportError, BevelError):
    """An optional package is missing. The message has the command that installs it."""


class FreeSpaceError(BevelError):
    """The disk is full. Free space and start again: the run resumes from its last checkpoint."""


class FixStorageError(BevelError):
    """A file cannot be read or written: it is read-only, not permitted, moved, or on a faulty disk.

    The message says which. Repair it and start again: the run resumes from its last checkpoint.
    """


class FreeMemoryError(BevelError):
    """The memory of the machine or of its device is full. The message says what takes less."""
