"""python -m resolvent_lab."""

from resolvent_lab.cli import main

if __name__ == "__main__":
    main()
