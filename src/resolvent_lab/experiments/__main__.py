"""python -m resolvent_lab.experiments: the same as `resolvent reproduce --train-only`."""

import sys

from resolvent_lab.cli import main

if __name__ == "__main__":
    main(["reproduce", *sys.argv[1:], "--train-only"])  # last, so that no configuration file overrides it
