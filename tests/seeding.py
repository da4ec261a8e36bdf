"""The seeds of the tests. RESOLVENT_TEST_SEED replaces all of them by others, so that no test rests on a lucky draw."""

import os

SHIFT = int(os.environ.get("RESOLVENT_TEST_SEED", "0"))
# Seeds in tests are small numbers: shifted ones are never among them.
_DISTANCE = 1000


def shifted(seed: int) -> int:
    """The seed to use in place of this one; itself unless RESOLVENT_TEST_SEED says otherwise."""
    return seed + _DISTANCE * SHIFT
