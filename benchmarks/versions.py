"""Compares the speed of this version with that of another one: `resolvent bench` of either, in turns.

python benchmarks/versions.py OTHER/src [--rows B1,B2,B3] [--turns 5] [--device cpu]

A turn is a process of its own. Compared are the times of a step, over the turns of either version: their medians, and
the least ones, which other load on the machine affects less. The other version must write its results in the same form.
The explicit network is a control: it is the same in both versions, but for how the benchmark writes it.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

HERE = Path(__file__).parent.parent / "src"
# Compiling takes minutes in every process.
SKIP = "compile,max-autotune"
Key = tuple[str, float, str, str]


def turn(source: Path, rows: str, device: str) -> dict[Key, float]:
    """Seconds of a step by row, theta, contender and action, for the package in a folder."""
    module = "resolvent_lab" if (source / "resolvent_lab").exists() else "resolvent"
    with tempfile.TemporaryDirectory() as out:
        options = ["--rows", rows, "--rounds", "3", "--skip", SKIP, "--device", device, "--out", out]
        path = os.pathsep.join([str(source), os.environ.get("PYTHONPATH", "")])
        subprocess.run(
            [sys.executable, "-m", module, "bench", *options],
            env={**os.environ, "PYTHONPATH": path},
            check=True,
            stdout=subprocess.DEVNULL,
        )
        found = json.loads((Path(out) / "results.json").read_text())
    return {
        (f"{record['row']} {record['title']} {record['network']}", record["theta"], name, action): min(entry[action])
        for record in found["records"]
        for name, entry in record["contenders"].items()
        for action in ("train", "infer")
    }


def table(old: list[dict[Key, float]], new: list[dict[Key, float]]) -> str:
    titles = "row", "theta", "contender", "step", "other, ms", "this, ms", "this / other", "least / least"
    lines = ["| " + " | ".join(titles) + " |", "|---" * len(titles) + "|"]
    for key in new[0]:
        row, theta, name, action = key
        before, after = [each[key] for each in old if key in each], [each[key] for each in new if key in each]
        ratios = [f"{pick(after) / pick(before):.2f}" if before else "" for pick in (median, min)]
        cells = row, f"{theta:g}", name, action, _spread(before), _spread(after), *ratios
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _spread(seconds: list[float]) -> str:
    least, middle, most = (1e3 * pick(seconds) for pick in (min, median, max)) if seconds else (0.0, 0.0, 0.0)
    return f"{middle:.2f} ({least:.2f}-{most:.2f})" if seconds else "none"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="the folder `src` of another checkout")
    parser.add_argument("--rows", default="B1,B2,B3")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    old, new = [], []
    for _ in range(arguments.turns):
        old.append(turn(arguments.other.resolve(), arguments.rows, arguments.device))
        new.append(turn(HERE.resolve(), arguments.rows, arguments.device))
        print(table(old, new), end="\n\n", flush=True)


if __name__ == "__main__":
    main()
