"""`join` lets the same program run alone, under `launch`, or on a cluster."""

import dataclasses
import importlib.util
import os
import sys
import traceback
from types import TracebackType

import jax

from bevel.checks import whole_number
from bevel.errors import FixArgumentsError

# The environment variables that `launch` sets for each process.
COORDINATOR, COUNT, INDEX = "BEVEL_COORDINATOR", "BEVEL_PROCESSES", "BEVEL_PROCESS"

# The variable with the number of processes, for schedulers that JAX detects itself.
SCHEDULERS = {"SLURM": "SLURM_NTASKS", "Open MPI": "OMPI_COMM_WORLD_SIZE"}
# Kubernetes has no such variable, but indexed jobs have this one.
KUBERNETES_INDEX = "JOB_COMPLETION_INDEX"


@dataclasses.dataclass(frozen=True)
class Joined:
    """The index of this process and the number of processes."""

    index: int
    count: int


def join(*, heartbeat_seconds: int = 30, shutdown_seconds: int = 45) -> Joined:
    """Joins the other processes of this program, if there are any.

    Call it once, before anything uses a device. It checks the following, in this order:

    1. The program has already called `jax.distributed.initialize`: nothing is done.
    2. `bevel.processes.launch` started the program and set environment variables.
    3. SLURM, Open MPI or an indexed Kubernetes job started it, which `jax.distributed` detects.
    4. Otherwise, the program runs alone.

    Afterwards `jax.devices()` lists the devices of all processes, and `jax.local_devices()` those
    of this process.

    Args:
      heartbeat_seconds: how long a process may be silent before the others consider it dead and
        exit. With less than 10, a machine that is merely busy may be considered dead.
      shutdown_seconds: how long a process that has finished waits for the others to finish. If one
        does not, all fail. Increase it if one process works alone at the end, for example to write
        a report.

    With several processes, an uncaught exception is printed and ends the process at once. JAX would
    make the failed process wait for the others at exit, while they wait for it in a collective.
    `sys.exit(3)` is treated as a normal exit: the process waits for `shutdown_seconds`, and JAX
    replaces its status.
    """
    timeouts = {"heartbeat_seconds": heartbeat_seconds, "shutdown_seconds": shutdown_seconds}
    for name, seconds in timeouts.items():
        whole_number(name, seconds, 1, 2**31 - 1, "JAX takes seconds in 32 bits.")
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

    It is None in a shell inside an allocation, and in a pod that runs alone.
    """
    for name, count in SCHEDULERS.items():
        if int(os.environ.get(count, "1")) > 1:
            return name
    if "KUBERNETES_SERVICE_HOST" in os.environ and KUBERNETES_INDEX in os.environ:
        if importlib.util.find_spec("kubernetes") is None:
            raise FixArgumentsError(
                "this process belongs to an indexed Kubernetes job, but JAX needs the kubernetes "
                'package to find the others. Run: pip install "jax[k8s]"'
            )
        return "Kubernetes"
    return None


def _end_at_once(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Prints an exception and ends the process without waiting for the others."""
    traceback.print_exception(kind, error, trace)
    print(
        f"process {jax.process_index()} failed and exits without waiting for the others",
        file=sys.stderr,
    )
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(130 if issubclass(kind, KeyboardInterrupt) else 1)
