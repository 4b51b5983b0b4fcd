"""Two processes compute the same run as one, and one process can resume it."""

import json

import numpy as np
import pytest
import training_runs as runs
from two_processes import launched

from bevel.sharding import make_mesh

PROGRAM = """
process, folder = sys.argv[2:]
import numpy as np
import training_runs as runs
from bevel.sharding import make_mesh

trainer = runs.trainer(mesh=make_mesh("data=8"))
state = runs.fit(folder, of=trainer, callback=runs.at_step(4))
np.savez(f"{folder}/process{process}.npz", **{k: np.asarray(v) for k, v in state.params.items()})
"""


@pytest.mark.full
def test_two_processes_train_as_one_and_one_goes_on(tmp_path):
    folder = tmp_path / "run"
    launched(PROGRAM, folder)
    expected = runs.fit(of=runs.trainer(mesh=make_mesh("data=8")), callback=runs.at_step(4))
    for process in range(2):
        with np.load(folder / f"process{process}.npz") as found:
            for name in ("w", "b"):
                np.testing.assert_allclose(found[name], expected.params[name], atol=1e-6)
    lines = (folder / "released" / "ledger.jsonl").read_text().splitlines()[1:]
    assert [json.loads(line)["entry"]["stop"] for line in lines] == [2, 4]
    record = json.loads((folder / "released" / "run.json").read_text())
    assert record["surroundings"]["processes"] == 2
    # One process resumes on another mesh. Only unreleased steps are left, which cost nothing.
    again = runs.fit(folder, of=runs.trainer(mesh=make_mesh("data=4,model=2")))
    unbroken = runs.fit()
    np.testing.assert_allclose(again.params["w"], unbroken.params["w"], atol=1e-6)
    lines = (folder / "released" / "ledger.jsonl").read_text().splitlines()[1:]
    assert [json.loads(line)["entry"]["attempt"] for line in lines] == [0] * 4
