"""python -m resolvent_lab.experiments: the training alone."""

from resolvent_lab.experiments.command import main
from resolvent_lab.experiments.reproduce import train

if __name__ == "__main__":
    main(carry_out=train, prog="python -m resolvent_lab.experiments")
