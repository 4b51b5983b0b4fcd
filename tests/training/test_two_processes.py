"""Two processes train as one does, and one goes on where two have stopped."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import training_runs as runs

from bevel.sharding import make_mesh

TESTS = Path(__file__).resolve().parents[1]
PROGRAM = """
import sys
import jax

address, process, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)
jax.distributed.initialize(address, num_processes=2, process_id=process)
import numpy as np
import training_runs as runs
from bevel.sharding import make_mesh

trainer = runs.trainer(mesh=make_mesh("data=8"))
state = runs.fit(folder, of=trainer, callback=runs.at_step(4))
np.savez(f"{folder}/process{process}.npz", **{k: np.asarray(v) for k, v in state.params.items()})
"""


def two_processes(folder):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    environment = {**os.environ, "PYTHONPATH": f"{TESTS.parent}:{TESTS}"}
    command = [sys.executable, "-c", PROGRAM, address]
    started = [
        subprocess.Popen(
            [*command, str(process), str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )
        for process in range(2)
    ]
    try:
        for process in started:
            output, _ = process.communicate(timeout=240)
            assert process.returncode == 0, output[-4000:]
    finally:
        for process in started:
            process.kill()


def test_two_processes_train_as_one_and_one_goes_on(tmp_path):
    folder = tmp_path / "run"
    two_processes(folder)
    expected = runs.fit(of=runs.trainer(mesh=make_mesh("data=8")), callback=runs.at_step(4))
    for process in range(2):
        with np.load(folder / f"process{process}.npz") as found:
            for name in ("w", "b"):
                np.testing.assert_allclose(found[name], expected.params[name], atol=1e-6)
    lines = (folder / "released" / "ledger.jsonl").read_text().splitlines()[1:]
    assert [json.loads(line)["entry"]["stop"] for line in lines] == [2, 4]
    record = json.loads((folder / "released" / "run.json").read_text())
    assert record["surroundings"]["processes"] == 2
    # One process, another mesh: only unreleased steps are left, at no cost.
    again = runs.fit(folder, of=runs.trainer(mesh=make_mesh("data=4,model=2")))
    unbroken = runs.fit()
    np.testing.assert_allclose(again.params["w"], unbroken.params["w"], atol=1e-6)
    lines = (folder / "released" / "ledger.jsonl").read_text().splitlines()[1:]
    assert [json.loads(line)["entry"]["attempt"] for line in lines] == [0] * 4
