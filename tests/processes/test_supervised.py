"""What `launch` started ends with it, whatever ends it, and ends as if nothing was in between."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bevel.processes.launching import SUPERVISED, free_port

ROOT = Path(__file__).resolve().parents[2]
LAUNCH = """
import sys
from bevel.processes.launching import launch
sys.exit(launch(["sh", "-c", sys.argv[1]], int(sys.argv[2])))
"""


def running(marker):
    """The processes whose command has the marker."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if marker.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def wait_until(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT])
@pytest.mark.skipif(not Path("/proc").exists(), reason="looks at processes in /proc")
def test_what_launch_started_dies_when_it_is_killed(number):
    """Also what ignores signals, was stopped, or was started by the program."""
    marker = f"1000.{free_port()}"
    script = f"trap '' INT TERM HUP; sleep {marker} & sleep {marker}; echo unreachable"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCH, script, "2"], env=environment, stdout=subprocess.DEVNULL
    )
    sleeping = [f"sleep\0{marker}"] * 4
    assert wait_until(lambda: len(running(sleeping[0])) == 4), "the programs did not start"
    os.kill(running(sleeping[0])[0], signal.SIGSTOP)
    os.kill(launcher.pid, number)
    launcher.wait()
    assert wait_until(lambda: not running(marker)), "programs were left behind"


def supervised(*command, **options):
    reading, writing = os.pipe()
    try:
        return subprocess.run(
            [sys.executable, "-I", "-S", str(SUPERVISED), str(reading), *command],
            pass_fds=[reading],
            capture_output=True,
            text=True,
            check=False,
            **options,
        )
    finally:
        os.close(reading)
        os.close(writing)


@pytest.mark.parametrize(
    ("script", "code"),
    [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", -9), ("kill -15 $$", -15), ("kill -2 $$", -2)],
)
def test_the_status_is_that_of_the_program(script, code):
    assert supervised("sh", "-c", script).returncode == code


def test_the_program_gets_its_arguments_environment_and_default_signals():
    script = 'trap "" PIPE; echo "$1|$WORD"; grep SigIgn /proc/self/status'
    done = supervised("sh", "-c", script, "sh", "a b", env={**os.environ, "WORD": "x y"})
    first, ignored = done.stdout.splitlines()
    assert first == "a b|x y"
    with open("/proc/self/status") as own:
        before = int(next(line for line in own if "SigIgn" in line).split()[1], 16)
    pipe, size = 1 << (signal.SIGPIPE - 1), 1 << (signal.SIGXFSZ - 1)
    assert int(ignored.split()[1], 16) == before & ~size | pipe


def test_a_program_that_cannot_start_says_so(tmp_path):
    text = tmp_path / "text"
    text.write_text("not a program")
    text.chmod(0o755)
    done = supervised(str(text))
    assert done.returncode == 127 and "cannot start" in done.stderr
