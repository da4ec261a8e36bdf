"""python -m resolvent.experiments: the training alone."""

from resolvent.experiments.command import main
from resolvent.experiments.reproduce import train

if __name__ == "__main__":
    main(carry_out=train, prog="python -m resolvent.experiments")
