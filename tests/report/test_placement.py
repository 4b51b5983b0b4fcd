from bevel.report.placement import MOST_ROWS, array_rows, collective_rows, mesh_of


def test_an_array_has_a_row_and_what_is_missing_a_question_mark():
    full = {"path": "w", "dtype": "float32", "shape": [8, 16], "spec": "P('m')"}
    full |= {"shard_shape": [8, 8], "bytes_per_device": 256, "replication": 4.0}
    assert array_rows([full]) == [["w", "float32 8x16", "P('m')", "8x8", "256 B", "4"]]
    assert array_rows([{}]) == [["(root)", " ?", "-", "?", "?", "?"]]


def test_a_collective_is_over_axes_or_groups():
    found = [{"kind": "all-reduce", "axes": ["data"], "times": 2, "sent": 10, "shapes": [[2, 3]]}]
    found += [{"kind": "all-gather", "axes": None, "group_size": 4, "times": 1}]
    first, second = collective_rows(found)
    assert first[3:6] == ["data", "2", "20 B"] and second[3:6] == ["groups of 4", "1", "?"]
    assert collective_rows(None) is None and collective_rows([]) == []


def test_tables_are_bounded():
    assert len(array_rows([{}] * 1000)) == len(collective_rows([{}] * 1000)) == MOST_ROWS


def test_the_mesh_has_its_axes():
    assert mesh_of({"surroundings": {"mesh": {"data": [4, "Auto"]}}}) == {"data": 4}
    assert mesh_of({}) == {}
