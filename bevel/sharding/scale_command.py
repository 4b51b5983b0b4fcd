"""Scaling on paper, from the command line.

python -m bevel.sharding.scale_command examples/scale.py:build_step --axes data=-1,model=2 \\
    --batch-size 16 --devices 8,64,512,4096 --spec '{"layers": 2}' --plot scale.svg
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from bevel.sharding.scale import scale
from bevel.sharding.scale_report import Speeds


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="bevel.sharding.scale_command", description=__doc__)
    parser.add_argument("build_step", help="module:function or file.py:function")
    parser.add_argument("--axes", default="data=-1", help="the mesh; -1 takes the rest")
    parser.add_argument("--batch-size", type=int, required=True, help="on the fewest devices")
    parser.add_argument("--devices", default="8,64,512,4096")
    parser.add_argument("--spec", default="{}", help="JSON: what else build_step takes")
    for name in ("flops", "memory", "link", "latency"):
        parser.add_argument(f"--{name}", type=float, default=getattr(Speeds, name))
    parser.add_argument("--plot", help="an SVG file to draw")
    parser.add_argument("--json", help="a file for the plain data")
    given = parser.parse_args(arguments)
    report = scale(
        given.build_step,
        axes=given.axes,
        batch_size=given.batch_size,
        devices=[int(n) for n in given.devices.split(",")],
        spec=json.loads(given.spec),
        speeds=Speeds(given.flops, given.memory, given.link, given.latency),
    )
    print(report)
    if given.plot:
        report.plot(given.plot)
    if given.json:
        Path(given.json).write_text(json.dumps(report.to_dict(), indent=1))


if __name__ == "__main__":
    main()
