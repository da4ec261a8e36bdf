"""torchdeq, helped by hand: where a field declares its linear part, F(z) = c z + N(z), the map that is iterated becomes
z -> (x + theta h N(z)) / (1 - theta h c), as it is in this library, instead of x + theta h F(z).
"""

from pathlib import Path

from resolvent_lab.bench.peers import load
from resolvent_lab.bench.task import blocks

torchdeq = load("torchdeq", Path(__file__).parent)


def candidates(task):
    """Those of torchdeq, for fields with a linear part."""
    if task.theta is None:
        return {}
    linear_part = next(iter(blocks(task.model).values())).field.linear_part
    return {} if linear_part is None else torchdeq.candidates(task, "torchdeq_linear", shifted=True)
