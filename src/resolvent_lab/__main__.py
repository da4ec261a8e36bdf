"""python -m resolvent_lab: the same as the command `resolvent`."""

from resolvent_lab.cli import main

if __name__ == "__main__":
    main()
