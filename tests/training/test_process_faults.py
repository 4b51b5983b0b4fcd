"""Processes of a run that are stopped, stalled, late, killed or short of memory.

Every test starts a program, disturbs it, and resumes its run: it must then be what an undisturbed
run would have been.
"""

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import numpy as np
import pytest
import training_runs as runs

from bevel.errors import FixArgumentsError, FreeMemoryError
from bevel.sharding import make_mesh
from bevel.training import folder_run

TESTS = Path(__file__).resolve().parents[1]
PROGRAM = """
import sys, time
import jax
late = float(sys.argv[2])
from bevel.processes import join
import os
if os.environ.get("BEVEL_PROCESS") == "1":
    time.sleep(late)
me = join(heartbeat_seconds=10, shutdown_seconds=10)
if me.count == 1:
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 8)
import training_runs as runs
from bevel.sharding import make_mesh

def show(state, metrics):
    print(f"pid {os.getpid()} step {metrics['step']}", flush=True)
    time.sleep(0.5)

runs.fit(sys.argv[1], of=runs.trainer(mesh=make_mesh("data=8")), callback=show)
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    return runs.fit(folder, of=runs.trainer(mesh=make_mesh("data=8")))


class Program:
    """The program above, alone or under `bevel launch`, and the lines that it has printed."""

    def __init__(self, folder, processes=1, late=0.0):
        command = [sys.executable, "-c", PROGRAM, str(folder), str(late)]
        if processes > 1:
            launch = [sys.executable, "-m", "bevel.processes", f"--processes={processes}", "--"]
            command = [*launch, *command]
        environment = {**os.environ, "PYTHONPATH": f"{TESTS.parent}:{TESTS}"}
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
            start_new_session=True,
        )
        self.lines = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.append(line)

    def pid_at(self, step, prefix="", seconds=120):
        """The process that said that it reached a step."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for line in list(self.lines):
                if line.startswith(prefix) and line.endswith(f"step {step}\n"):
                    return int(line.split("pid ")[1].split()[0])
            assert self.process.poll() is None, "".join(self.lines)
            time.sleep(0.05)
        raise AssertionError("".join(self.lines))

    def end(self, seconds=120):
        code = self.process.wait(seconds)
        self._reader.join(10)
        return code

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.process.kill()
        self.process.wait()
        self._reader.join(10)
        self.process.stdout.close()


def check_resumes(folder, whole):
    state = runs.fit(folder, of=runs.trainer(mesh=make_mesh("data=8")))
    for found, expected in zip(runs.arrays(state.params), runs.arrays(whole.params), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-6)
    lines = (folder / "released" / "ledger.jsonl").read_text().splitlines()[1:]
    entries = [json.loads(line)["entry"] for line in lines]
    charged = [(entry["first"], entry["stop"], entry["attempt"]) for entry in entries]
    assert charged == [(0, 2, 0), (2, 4, 0), (4, 6, 0), (6, 8, 0)]


def gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.full
def test_a_stopped_process_keeps_its_run_and_goes_on(whole, tmp_path):
    with Program(tmp_path / "run") as program:
        pid = program.pid_at(2)
        os.kill(pid, signal.SIGSTOP)
        time.sleep(1)
        with pytest.raises(FixArgumentsError, match="in use by another run"):
            runs.fit(tmp_path / "run", of=runs.trainer(mesh=make_mesh("data=8")))
        os.kill(pid, signal.SIGCONT)
        assert program.end() == 0, "".join(program.lines)
    check_resumes(tmp_path / "run", whole)


@pytest.mark.full
def test_a_process_that_stalls_or_is_late_for_less_than_the_heartbeat_delays_the_run(
    whole, tmp_path
):
    with Program(tmp_path / "run", processes=2, late=8.0) as program:
        pid = program.pid_at(2, "[1]")
        os.kill(pid, signal.SIGSTOP)
        time.sleep(3)
        os.kill(pid, signal.SIGCONT)
        assert program.end() == 0, "".join(program.lines)
    check_resumes(tmp_path / "run", whole)


@pytest.mark.full
def test_a_process_that_stalls_for_longer_ends_the_run_which_resumes(whole, tmp_path):
    with Program(tmp_path / "run", processes=2) as program:
        pid = program.pid_at(2, "[1]")
        os.kill(pid, signal.SIGSTOP)
        assert program.end() != 0  # nothing has to continue the stopped process
        assert "ending the other 1" in "".join(program.lines)
        assert gone(pid)
    check_resumes(tmp_path / "run", whole)


@pytest.mark.full
def test_a_run_whose_launcher_is_killed_ends_and_resumes(whole, tmp_path):
    with Program(tmp_path / "run", processes=2) as program:
        pids = [program.pid_at(2, f"[{k}]") for k in range(2)]
        program.process.kill()
        deadline = time.monotonic() + 20
        while not all(map(gone, pids)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert all(map(gone, pids))
    time.sleep(2)  # the last thread of a killed process closes its files, and so frees its lock
    check_resumes(tmp_path / "run", whole)


FULL = """
import resource, sys
import jax
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
import training_runs as runs
from bevel.errors import FreeMemoryError
from bevel.sharding import make_mesh

def fill(state, metrics):
    if metrics["step"] == 4:
        pages = int(open("/proc/self/statm").read().split()[0])
        size = pages * resource.getpagesize() + int(sys.argv[2])
        resource.setrlimit(resource.RLIMIT_AS, (size, size))

try:
    runs.fit(sys.argv[1], of=runs.trainer(mesh=make_mesh("data=8")), callback=fill)
except FreeMemoryError as error:
    print(error)
    sys.exit(7)
"""


@pytest.mark.full
@pytest.mark.parametrize("more", [0, 1 << 22])
def test_a_limit_on_memory_loses_nothing(more, whole, tmp_path):
    """The process may also end without an exception: C++ code aborts if it gets no memory.

    Or it hangs: `Thread.start` of Python waits for a thread that got no memory. Then it is killed.
    """
    environment = {**os.environ, "PYTHONPATH": f"{TESTS.parent}:{TESTS}"}
    limits = resource.getrlimit(resource.RLIMIT_AS)
    command = [sys.executable, "-c", FULL, str(tmp_path / "run"), str(more)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, **pipes) as process:
        try:
            output, errors = process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            output, errors = process.communicate()
    assert limits == resource.getrlimit(resource.RLIMIT_AS)
    assert process.returncode in (0, 7) or process.returncode < 0, errors[-3000:]
    if process.returncode == 7:
        assert "the memory is full" in output
    check_resumes(tmp_path / "run", whole)


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    folder = tmp_path_factory.mktemp("short") / "run"
    return runs.fit(folder, of=runs.trainer(config=runs.plan(iterations=4)))


@pytest.mark.parametrize("where", ["stage", "wait", "publish", "restore"])
@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes."),
        RuntimeError("can't start new thread"),
    ],
    ids=["python", "xla", "threads"],
)
def test_a_full_memory_is_a_clear_error_and_the_run_resumes(
    where, error, short, tmp_path, monkeypatch
):
    folder = tmp_path / "run"
    first = runs.trainer(config=runs.plan(iterations=4))
    runs.fit(folder, of=first, callback=runs.at_step(2))
    with monkeypatch.context() as patched, pytest.raises(FreeMemoryError, match="memory is full"):
        patched.setattr(folder_run.Checkpoints, where, lambda *args, **kwargs: _raise(error))
        runs.fit(folder, of=first)
    assert not (folder / "private" / "damaged").exists()
    assert runs.same_bits(runs.fit(folder, of=first), short)
    lines = (folder / "released" / "ledger.jsonl").read_text().splitlines()
    assert len(lines) == 3


def _raise(error):
    raise error
