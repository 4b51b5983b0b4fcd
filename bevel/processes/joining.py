"""`join`: one line by which a program runs alone, under `launch`, or on a cluster."""

import dataclasses
import importlib.util
import os
import sys
import traceback
from types import TracebackType

import jax

from bevel.errors import FixArgumentsError

# What `launch` tells every process.
COORDINATOR, COUNT, INDEX = "BEVEL_COORDINATOR", "BEVEL_PROCESSES", "BEVEL_PROCESS"

# Where a scheduler says how many processes it started, for those that JAX detects itself.
SCHEDULERS = {"SLURM": "SLURM_NTASKS", "Open MPI": "OMPI_COMM_WORLD_SIZE"}
# Kubernetes does not say it. An indexed job has this.
KUBERNETES_INDEX = "JOB_COMPLETION_INDEX"


@dataclasses.dataclass(frozen=True)
class Joined:
    """Which process this is, of how many."""

    index: int
    count: int


def join(*, heartbeat_seconds: int = 30, shutdown_seconds: int = 45) -> Joined:
    """Joins the other processes of this program, if there are any.

    Call it once, before anything that uses a device. It looks, in this order, for

    1. a program that called `jax.distributed.initialize` itself: nothing is done;
    2. `bevel.processes.launch`, which set environment variables;
    3. SLURM, Open MPI or an indexed Kubernetes job, which `jax.distributed` detects itself;
    4. nothing of these: the program runs alone.

    Afterwards `jax.devices()` are those of all processes, and `jax.local_devices()` this one's.

    Args:
      heartbeat_seconds: how long a process may be silent until the others take it for dead and
        end. Below 10 a machine that is merely busy may be taken for dead.
      shutdown_seconds: how long a process that came to its end waits for the others to come to
        theirs. All of them fail if one does not. Give more if one process works alone at the end,
        say to write a report.

    A process that fails must not wait for the others at its end, as JAX makes it do, while they
    wait for it in a collective: with several processes, an exception that nobody catches is printed
    and ends the process at once. `sys.exit(3)` is an end as any other: the process waits for
    `shutdown_seconds`, and JAX replaces its status.
    """
    given = {"heartbeat_seconds": heartbeat_seconds, "shutdown_seconds": shutdown_seconds}
    for name, seconds in given.items():
        if seconds < 1:
            raise FixArgumentsError(f"{name}={seconds}: give at least 1.")
    if not jax.distributed.is_initialized():
        if COORDINATOR in os.environ:
            address = os.environ[COORDINATOR]
            jax.distributed.initialize(
                coordinator_address=address,
                num_processes=int(os.environ[COUNT]),
                process_id=int(os.environ[INDEX]),
                coordinator_bind_address=address,
                cluster_detection_method="deactivate",
                heartbeat_timeout_seconds=heartbeat_seconds,
                shutdown_timeout_seconds=shutdown_seconds,
            )
        elif cluster() is not None:
            jax.distributed.initialize(
                heartbeat_timeout_seconds=heartbeat_seconds,
                shutdown_timeout_seconds=shutdown_seconds,
            )
        else:
            return Joined(0, 1)
    joined = Joined(jax.process_index(), jax.process_count())
    if joined.count > 1:
        sys.excepthook = _end_at_once
    return joined


def cluster() -> str | None:
    """The scheduler that started several processes of this program, or None.

    A shell inside of an allocation, or a pod that runs alone, is no such thing.
    """
    for name, count in SCHEDULERS.items():
        if int(os.environ.get(count, "1")) > 1:
            return name
    if "KUBERNETES_SERVICE_HOST" in os.environ and KUBERNETES_INDEX in os.environ:
        if importlib.util.find_spec("kubernetes") is None:
            raise FixArgumentsError(
                "this is a process of an indexed Kubernetes job, and JAX finds the others with "
                'the kubernetes package, which is not installed: pip install "jax[k8s]".'
            )
        return "Kubernetes"
    return None


def _end_at_once(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Prints an exception and ends the process without waiting for the others."""
    traceback.print_exception(kind, error, trace)
    print(
        f"process {jax.process_index()} failed, and ends without waiting for the others",
        file=sys.stderr,
    )
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(130 if issubclass(kind, KeyboardInterrupt) else 1)
