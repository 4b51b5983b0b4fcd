"""Who the others are: alone, under a launch, on a cluster."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bevel.errors import FixArgumentsError
from bevel.processes.joining import cluster
from bevel.processes.launching import free_port
from bevel.sharding.processes import Joined, join

pytestmark = pytest.mark.full  # several processes that wait for one another

ROOT = Path(__file__).resolve().parents[2]
VARIABLES = ("SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "KUBERNETES_SERVICE_HOST", "BEVEL_COORDINATOR")


@pytest.fixture(autouse=True)
def nowhere(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_alone_nothing_happens():
    before = sys.excepthook
    assert join() == Joined(index=0, count=1)
    assert sys.excepthook is before


def test_one_task_in_an_allocation_is_alone(monkeypatch):
    monkeypatch.setenv("SLURM_NTASKS", "1")
    assert cluster() is None
    monkeypatch.setenv("SLURM_NTASKS", "4")
    assert cluster() == "SLURM"


def test_processes_of_open_mpi(monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    assert cluster() == "Open MPI"


def test_a_pod_is_alone_unless_its_job_is_indexed(monkeypatch):
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert cluster() is None
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "0")
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(FixArgumentsError, match="pip install"):
        cluster()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert cluster() == "Kubernetes"


@pytest.mark.parametrize("name", ["heartbeat_seconds", "shutdown_seconds"])
def test_no_time_at_all_is_refused(name):
    with pytest.raises(FixArgumentsError, match=f"{name}=0"):
        join(**{name: 0})


PROGRAM = """
import sys, time
import jax
from bevel.sharding.processes import join
me = join({options})
print(me.index, me.count, len(jax.devices()), flush=True)
if me.index == 1:
    sys.stdin.readline()
    {end}
{other}
"""


def end_under_slurm(end, options="heartbeat_seconds=10", other="time.sleep(200)"):
    """Two tasks with the environment that SLURM gives, both on this machine.

    One comes to its end, the other is elsewhere: their statuses, their errors and the seconds.
    """
    job = str(free_port())  # JAX makes a port of the number of the job
    command = [sys.executable, "-c", PROGRAM.format(end=end, options=options, other=other)]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    tasks = []
    try:
        for index in range(2):
            environment = os.environ | {
                "PYTHONPATH": str(ROOT),
                "JAX_PLATFORMS": "cpu",
                "JAX_NUM_CPU_DEVICES": "2",
                "SLURM_JOB_ID": job,
                "SLURM_STEP_NODELIST": "127.0.0.1",
                "SLURM_NTASKS": "2",
                "SLURM_PROCID": str(index),
                "SLURM_LOCALID": str(index),
            }
            tasks.append(subprocess.Popen(command, env=environment, text=True, **pipes))
        assert [task.stdout.readline() for task in tasks] == ["0 2 4\n", "1 2 4\n"]
        tasks[1].stdin.write("go\n")
        tasks[1].stdin.flush()
        ended = time.monotonic()
        errors = [task.communicate(timeout=60)[1] for task in tasks]
        return [task.returncode for task in tasks], errors, time.monotonic() - ended
    finally:
        for task in tasks:
            task.kill()
            task.communicate()


def test_without_a_launcher_a_process_that_fails_ends_the_others():
    statuses, errors, seconds = end_under_slurm("raise RuntimeError('the data is gone')")
    assert seconds < 60
    assert statuses[1] == 1
    assert "the data is gone" in errors[1] and "process 1 failed" in errors[1]
    assert statuses[0] != 0 and "another task died" in errors[0]


def test_a_process_that_exits_early_is_waited_for_a_limited_time():
    statuses, errors, seconds = end_under_slurm("sys.exit(3)", "shutdown_seconds=5")
    assert 4 < seconds < 60
    assert all(statuses) and all("another task died" in text for text in errors)


def test_a_process_that_is_done_waits_for_the_others():
    statuses, errors, seconds = end_under_slurm("sys.exit(0)", other="time.sleep(3)")
    assert statuses == [0, 0] and errors == ["", ""]
    assert seconds > 2
