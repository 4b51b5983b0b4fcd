"""Who the others are: alone, under a launch, on a cluster."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bevel.errors import FixArgumentsError
from bevel.sharding.processes import Joined, join
from bevel.sharding.processes.joining import cluster
from bevel.sharding.processes.launching import free_port

ROOT = Path(__file__).resolve().parents[3]
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


def test_silence_of_no_time_is_refused():
    with pytest.raises(FixArgumentsError, match="heartbeat_seconds=0"):
        join(heartbeat_seconds=0)


PROGRAM = """
import sys, time
import jax
from bevel.sharding.processes import join
me = join(heartbeat_seconds=10)
print(me.index, me.count, len(jax.devices()), flush=True)
if me.index == 1:
    sys.stdin.readline()
    raise RuntimeError("the data is gone")
time.sleep(200)
"""


def start_under_slurm():
    """Two tasks with the environment that SLURM gives, both on this machine."""
    job = str(free_port())  # JAX makes a port of the number of the job
    tasks = []
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
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        command = [sys.executable, "-c", PROGRAM]
        tasks.append(subprocess.Popen(command, env=environment, text=True, **pipes))
    return tasks


def test_without_a_launcher_a_process_that_fails_ends_the_others():
    tasks = start_under_slurm()
    try:
        assert [task.stdout.readline() for task in tasks] == ["0 2 4\n", "1 2 4\n"]
        tasks[1].stdin.write("go\n")
        tasks[1].stdin.flush()
        failed = time.monotonic()
        errors = [task.communicate(timeout=60)[1] for task in tasks]
        assert time.monotonic() - failed < 60
        assert "the data is gone" in errors[1] and "process 1 failed" in errors[1]
        assert tasks[1].returncode == 1
        assert "another task died" in errors[0]
        assert tasks[0].returncode != 0
    finally:
        for task in tasks:
            task.kill()
            task.wait()
