"""Several processes on this machine: what they compute, print and return."""

import errno
import io
import json
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from private_step import STEPS, train

from bevel.errors import FixArgumentsError
from bevel.processes.__main__ import main
from bevel.processes.launching import environment_of, exit_text, free_port
from bevel.sharding.processes import launch

TESTS = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(TESTS.parent))


def shell(script, **options):
    """Runs a line of shell in every process: the code, the lines, and the seconds it took."""
    output = io.StringIO()
    started = time.monotonic()
    code = launch(["sh", "-c", script], output=output, **options)
    return code, output.getvalue().splitlines(), time.monotonic() - started


@pytest.mark.full
def test_two_processes_train_like_one():
    output = io.StringIO()
    code = launch([sys.executable, str(TESTS / "private_step.py")], 2, 4, output=output)
    lines = output.getvalue().splitlines()
    assert code == 0, lines[-20:]
    expected = train()
    found = [json.loads(line[4:]) for line in lines if line.startswith(("[0] {", "[1] {"))]
    assert len(found) == 2
    for step in range(STEPS):
        shares = [facts["indices"][step] for facts in found]
        assert all(shares) and not set(shares[0]) & set(shares[1])
        assert sorted(shares[0] + shares[1]) == expected["indices"][step]
    for facts in found:
        assert facts["noise"] == expected["noise"]  # to the last bit
        assert facts["params"] == found[0]["params"]
        for name, leaf in facts["params"].items():
            np.testing.assert_allclose(leaf, expected["params"][name], rtol=1e-5, atol=1e-6)


KILLED = """
import os, time
from bevel.sharding.processes import join
if join().index == 1:
    print("now", time.time())
    os.kill(os.getpid(), 9)
time.sleep(300)
"""


def test_a_process_that_is_killed_ends_the_others():
    output = io.StringIO()
    code = launch([sys.executable, "-c", KILLED], output=output, grace_seconds=1.0)
    ended = time.time()
    lines = output.getvalue().splitlines()
    assert code == 128 + signal.SIGKILL
    assert "process 1 was killed by SIGKILL; ending the other 1" in lines
    (killed,) = [float(line.split()[-1]) for line in lines if line.startswith("[1] now")]
    assert ended - killed < 10


def test_lines_have_the_number_of_their_process():
    code, lines, _ = shell("echo out; echo err >&2; printf last", processes=3)
    assert code == 0
    assert sorted(lines) == sorted(
        f"[{i}] {word}" for i in range(3) for word in ("out", "err", "last")
    )


def test_the_first_that_fails_sets_the_code_and_ends_the_others():
    script = 'if [ "$BEVEL_PROCESS" = 1 ]; then exit 7; fi; sleep 100'
    code, lines, seconds = shell(script, processes=3)
    assert code == 7 and seconds < 10
    assert lines == ["process 1 returned 7; ending the other 2"]


@pytest.mark.full
def test_a_process_that_ignores_the_request_to_end_is_killed():
    script = 'if [ "$BEVEL_PROCESS" = 1 ]; then sleep 0.5; exit 1; fi; trap "" TERM; sleep 100'
    code, _, seconds = shell(script, grace_seconds=0.5)
    assert code == 1 and seconds < 10


def test_what_a_process_started_ends_with_it():
    marker = free_port()
    script = f'sleep 1000.{marker} & if [ "$BEVEL_PROCESS" = 1 ]; then exit 1; fi; wait'
    assert shell(script, grace_seconds=1.0)[0] == 1
    running = [
        p.read_bytes() for p in Path("/proc").glob("[0-9]*/cmdline") if p.parent.name.isdigit()
    ]
    assert not any(f"1000.{marker}".encode() in command for command in running)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_all_processes(number):
    timer = threading.Timer(1.0, lambda: os.kill(os.getpid(), number))
    timer.start()
    code, lines, seconds = shell("trap 'echo asked; exit 0' INT; sleep 100 & wait")
    assert code == 130 and seconds < 10
    assert lines.count("interrupted: ending all processes") == 1
    assert {"[0] asked", "[1] asked"} <= set(lines)


def test_launching_outside_of_the_main_thread():
    codes = []
    thread = threading.Thread(target=lambda: codes.append(shell("exit 0")[0]))
    thread.start()
    thread.join()
    assert codes == [0]


def test_every_process_has_its_devices_and_its_place(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_a=1 --xla_force_host_platform_device_count=8")
    environment = environment_of(1, 2, 4, "127.0.0.1:5")
    assert environment["XLA_FLAGS"] == "--xla_a=1"
    assert environment["JAX_NUM_CPU_DEVICES"] == "4" and environment["JAX_PLATFORMS"] == "cpu"
    assert environment["BEVEL_PROCESS"] == "1" and environment["BEVEL_PROCESSES"] == "2"


def test_ports_are_free():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", free_port()))


def test_ends_in_words():
    assert exit_text(3) == "returned 3"
    assert exit_text(-9) == "was killed by SIGKILL"
    assert exit_text(-200) == "was killed by signal 200"


@pytest.mark.parametrize(
    ("command", "options", "says"),
    [
        (["true"], {"processes": 0}, "at least 1"),
        (["true"], {"devices_per_process": 0}, "at least 1"),
        ([], {}, "command is empty"),
        (["/no/such/program"], {}, "cannot start '/no/such/program'"),
    ],
)
def test_bad_arguments_are_refused(command, options, says):
    with pytest.raises(FixArgumentsError, match=says):
        launch(command, **options)


def test_the_command_line(capsys):
    assert main(["--processes", "3", "--", "sh", "-c", "echo $BEVEL_PROCESSES; exit 0"]) == 0
    assert sorted(capsys.readouterr().out.split("\n"))[1:] == ["[0] 3", "[1] 3", "[2] 3"]
    with pytest.raises(SystemExit) as error:
        main(["--processes", "0", "--", "true"])
    assert error.value.code == 2


def test_programs_do_not_wait_for_an_output_that_takes_nothing():
    """More lines than a pipe holds."""

    class Full:
        def write(self, text):
            raise OSError(errno.ENOSPC, "No space left on device")

    program = "print('0123456789' * 400)\n" * 400
    assert launch([sys.executable, "-c", program], 1, 1, output=Full()) == 0
