"""Which groups of layers are worth being solved for together."""

# Passes that a group is left out of at most before it is tried again: weights change.
_LONGEST = 63


class Attempts:
    """Remembers groups that could not be solved for together.

    One that failed is left out of the next pass, of three passes if it fails again, of seven and so on, so that what is
    tried in vain costs little in the long run.
    """

    def __init__(self) -> None:
        self._left_out: dict[int, int] = {}
        self._pause: dict[int, int] = {}

    def worth(self, number: int) -> bool:
        """Whether to try the group that begins with a layer of this number, in this pass."""
        left = self._left_out.get(number, 0)
        self._left_out[number] = max(0, left - 1)
        return left == 0

    def note(self, number: int, found: bool) -> None:
        """What came of it."""
        self._pause[number] = 0 if found else min(_LONGEST, 2 * self._pause.get(number, 0) + 1)
        self._left_out[number] = self._pause[number]
