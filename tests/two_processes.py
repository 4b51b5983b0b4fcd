"""Starts one program as several processes of JAX's runtime, which share eight virtual devices."""

import os
import socket
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent
BEGIN = """
import sys
import jax
jax.config.update("jax_platforms", "cpu")
address, count = sys.argv[1].split()
jax.config.update("jax_num_cpu_devices", 8 // int(count))
jax.distributed.initialize(address, num_processes=int(count), process_id=int(sys.argv[2]))
"""


def started(program, *arguments, seconds=240, processes=2):
    """Exit codes and outputs of all processes. argv: address, process, and the arguments."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    environment = {**os.environ, "PYTHONPATH": f"{TESTS.parent}:{TESTS}:{TESTS}/training"}
    command = [sys.executable, "-c", BEGIN + program, f"{address} {processes}"]
    all_processes = [
        subprocess.Popen(
            [*command, str(process), *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for process in range(processes)
    ]
    try:
        # One after the other: what libraries print would break lines of the program.
        outputs = ["".join(process.communicate(timeout=seconds)) for process in all_processes]
    finally:
        for process in all_processes:
            process.kill()
    return [process.returncode for process in all_processes], outputs


def launched(program, *arguments, processes=2):
    """Runs all to their end, which must be a good one. Returns what they printed."""
    codes, outputs = started(program, *arguments, processes=processes)
    for code, output in zip(codes, outputs, strict=True):
        assert code == 0, output[-4000:]
    return outputs
