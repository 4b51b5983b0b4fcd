"""`bevel.sharding`, `bevel.inspection`, `bevel.processes`: meshes, rules and numbers of "
"processes."""

import re

from bad_input.domains import (
    ANYTHING,
    AT_LEAST_0,
    FUNCTION,
    POSITIVE,
    Domain,
    either,
    instance,
    integer,
    optional,
)
from bad_input.rows import row

from bevel import inspection, processes, sharding

AXES = Domain("axes", lambda v: None if isinstance(v, str | dict | list | tuple) and v else False)
NAME = Domain("a name", lambda v: None if isinstance(v, str | tuple) and v else False)
TEXT = Domain("a string", lambda v: isinstance(v, str))
PATTERN = either(TEXT | instance(re.Pattern))
LINK = POSITIVE | Domain("links", lambda v: None if isinstance(v, dict) else False)

ROWS = [
    row(
        "axis_sizes",
        sharding.axis_sizes,
        axes=(AXES, "data=2,model=-1"),
        devices=(either(optional(integer(1, 2**31 - 1))), 8),
    ),
    row(
        "make_mesh",
        sharding.make_mesh,
        axes=(AXES, "data=2"),
        axis_types=(ANYTHING, "auto"),
        devices=(ANYTHING, None),
        between=(either(optional(AXES)), None),
    ),
    row(
        "fsdp",
        sharding.fsdp,
        axis=(NAME, "data"),
        min_size=(integer(0), 4096),
        after=(ANYTHING, None),
    ),
    row("tensor", sharding.tensor, axis=(NAME, "model"), second=(PATTERN, "*out*")),
    row("logical", sharding.logical, axes=(ANYTHING, {"embed": "data"})),
    row(
        "Rule",
        sharding.Rule,
        pattern=(PATTERN, "*"),
        choose=(FUNCTION, lambda leaf, mesh: None),
        name=(TEXT, "mine"),
    ),
    row(
        "Speeds",
        inspection.Speeds,
        flops=(POSITIVE, 1e12),
        memory=(POSITIVE, 1e12),
        link=(LINK, 1e11),
        latency=(AT_LEAST_0, 1e-5),
    ),
    row(
        "join",
        processes.join,
        heartbeat_seconds=(integer(1, 2**31 - 1), 30),
        shutdown_seconds=(integer(1, 2**31 - 1), 45),
    ),
]
FOUND = "made from an array or a compiled program: it holds what was found"
PROGRAM = "takes arrays or programs, which other tests check"
EXEMPT = {
    "replicated": "has no arguments",
    "place": PROGRAM,
    "plan_placement": PROGRAM,
    "check_devices": PROGRAM,
    "describe": PROGRAM,
    "visualize": PROGRAM,
    "inspect_step": PROGRAM,
    "doctor": PROGRAM,
    "scale": PROGRAM,
    "simulate_shard_map": PROGRAM,
    "shard_map_simulate": PROGRAM,
    "launch": "starts processes",
    "Joined": "made by `join`",
    "PlacedStep": "a pair of a function and its arguments",
    **dict.fromkeys(
        (
            "Placement",
            "Description",
            "Drawing",
            "StepReport",
            "Collective",
            "Diagnosis",
            "Finding",
            "ScaleReport",
        ),
        FOUND,
    ),
}
