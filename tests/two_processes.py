"""Starts one program as two processes of JAX's runtime, with four virtual devices each."""

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
jax.config.update("jax_num_cpu_devices", 4)
jax.distributed.initialize(sys.argv[1], num_processes=2, process_id=int(sys.argv[2]))
"""


def started(program, *arguments, seconds=240):
    """Exit codes and outputs of both processes. argv: address, process, and the arguments."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    environment = {**os.environ, "PYTHONPATH": f"{TESTS.parent}:{TESTS}"}
    command = [sys.executable, "-c", BEGIN + program, address]
    both = [
        subprocess.Popen(
            [*command, str(process), *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for process in range(2)
    ]
    try:
        # One after the other: what libraries print would break lines of the program.
        outputs = ["".join(process.communicate(timeout=seconds)) for process in both]
    finally:
        for process in both:
            process.kill()
    return [process.returncode for process in both], outputs


def launched(program, *arguments):
    """Runs both to their end, which must be a good one. Returns what they printed."""
    codes, outputs = started(program, *arguments)
    for code, output in zip(codes, outputs, strict=True):
        assert code == 0, output[-4000:]
    return outputs
