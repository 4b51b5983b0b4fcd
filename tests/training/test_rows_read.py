"""Every process reads the rows of its own devices, and no others."""

import itertools
import json

import jax
import numpy as np
import pytest
import rows_read
from two_processes import launched

PROGRAM = """
import rows_read
rows_read.main(*sys.argv[2:])
"""


def parts_of(devices, processes):
    """The devices of each process, if `processes` shared them."""
    size = len(devices) // processes
    return [devices[k * size : (k + 1) * size] for k in range(processes)]


@pytest.mark.parametrize("processes", [1, 2, 4, 8])
@pytest.mark.parametrize("case", rows_read.CASES)
def test_processes_read_disjoint_parts_of_one_batch(case, processes):
    """Simulates the processes: each reads what its devices hold, with a source of its own."""
    trainer, parts = rows_read.trainer(case), parts_of(jax.devices(), processes)
    sources = [rows_read.Recorded() for _ in parts]
    made = [rows_read.of_trainer(trainer, case, source) for source in sources]
    steps = zip(rows_read.steps_selected(case), *(m.selections() for m in made), strict=True)
    held = []
    for expected, *selections in steps:
        for batches, selection, devices in zip(made, selections, parts, strict=True):
            bounds = batches.bounds(selection.size, devices)
            shards = batches.read(selection, bounds)
            assert sum(stop - start for start, stop in bounds) * processes == selection.size
            assert list(shards) == bounds
        read = [sorted(itertools.chain(*source.calls)) for source in sources]
        assert sorted(itertools.chain(*read)) == expected  # disjoint, and together all of them
        held.append(read)
        for source in sources:
            source.calls.clear()
    assert processes == 1 or any(len(set(map(len, read))) > 1 for read in held)  # uneven: padding


def test_replicas_in_several_processes_read_the_same_rows_and_nothing_else():
    """With the model split between processes, each of them needs the rows of its data shards."""
    trainer, source = rows_read.trainer("padding", "model=2,data=4"), rows_read.Recorded()
    made = rows_read.of_trainer(trainer, "padding", source)
    selection, expected = next(made.selections()), rows_read.steps_selected("padding")[0]
    for devices in parts_of(list(trainer.mesh.devices.flat), 2):
        made.read(selection, made.bounds(selection.size, devices))
        assert sorted(itertools.chain(*source.calls)) == expected
        source.calls.clear()
    quarter = made.bounds(selection.size, [trainer.mesh.devices[0, 1]])
    assert quarter == made.bounds(selection.size, [trainer.mesh.devices[1, 1]])
    assert [stop - start for start, stop in quarter] == [selection.size // 4]


def test_all_devices_of_a_process_are_its_own():
    made = rows_read.of_trainer(rows_read.trainer("padding"), "padding")
    assert made.bounds(16) == made.bounds(16, jax.devices()) and len(made.bounds(16)) == 8


@pytest.mark.full
@pytest.mark.parametrize("processes", [2, 4])
def test_real_processes_read_disjoint_parts_of_one_batch(processes, tmp_path):
    launched(PROGRAM, tmp_path, processes=processes)
    found = [json.loads((tmp_path / f"{k}.json").read_text()) for k in range(processes)]
    for case in rows_read.CASES:
        expected = rows_read.steps_selected(case)
        shards = 8 // processes  # calls of a process in each step
        by_process = [np.array_split(np.arange(len(f[case])), len(expected)) for f in found]
        for step, indices in enumerate(expected):
            calls = [[f[case][k] for k in by_process[p][step]] for p, f in enumerate(found)]
            assert all(len(of_process) == shards for of_process in calls)
            assert sorted(itertools.chain(*itertools.chain(*calls))) == indices
