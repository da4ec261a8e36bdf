"""python -m resolvent.experiments: the training alone, which needs neither matplotlib nor a command-line library."""

import argparse
import sys
from pathlib import Path

from resolvent.experiments.catalogue import EXPERIMENTS
from resolvent.experiments.reproduce import train_all
from resolvent.experiments.sweep import SweepError


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m resolvent.experiments", description=train_all.__doc__)
    parser.add_argument("experiment", choices=[*EXPERIMENTS, "all"])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--theta", type=float, nargs="+")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--out", type=Path, default=Path("results"))
    given = parser.parse_args()
    try:
        train_all(given.experiment, given.quick, given.theta, given.seeds, given.jobs, given.out)
    except (ValueError, SweepError) as error:
        sys.exit(f"resolvent: {error}")
    except KeyboardInterrupt:
        sys.exit("interrupted: start the same command again to go on")


if __name__ == "__main__":
    main()
