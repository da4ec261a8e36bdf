"""Random probe vectors, and their generators."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, distributed

from resolvent.equation.modes import refuse_transforms
from resolvent.equation.torch_func import transforming

DISTRIBUTIONS = ("gaussian", "rademacher")


@dataclass(frozen=True)
class Probes:
    """Random vectors z with independent entries of mean 0 and variance 1. Each call of `draw` gives new ones.

    Arguments:
        count: the number of vectors.
        distribution: "gaussian", as in the paper, or "rademacher", signs +1 and -1. Signs give a smaller variance for
            traces and diagonals: since z_i^2 = 1, the diagonal contributes none.
        generator: a torch.Generator on any device. None takes torch's default. If `torch.distributed` has several
            ranks, the default is combined with the rank, so that the ranks have different probes even if all called
            `torch.manual_seed` with the same number. A given generator is not combined with the rank: give each rank
            its own, see `rank_generator`.
    """

    count: int = 1
    distribution: str = "gaussian"
    generator: torch.Generator | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.count, int) or isinstance(self.count, bool) or self.count < 1:
            raise ValueError(f"the number of probes must be a whole number, 1 or more, got {self.count!r}.")
        if self.distribution not in DISTRIBUTIONS:
            raise ValueError(f"distribution must be one of {DISTRIBUTIONS}, got {self.distribution!r}.")
        if self.generator is not None and not isinstance(self.generator, torch.Generator):
            raise ValueError(
                f"generator must be a torch.Generator or None, got {self.generator!r}; "
                "rs.estimators.rank_generator(seed) makes one from a number."
            )

    def draw(self, like: Tensor) -> Iterator[Tensor]:
        """`count` vectors, each with the shape, dtype and device of `like`."""
        generator = self.generator
        if generator is None and _ranks() > 1:
            # One number from torch's default generator: it advances with each call, equally on every rank.
            generator = rank_generator(int(torch.randint(2**62, ())), like.device)
        for _ in range(self.count):
            yield _draw(self.distribution, like, generator)


def rank_generator(seed: int, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator for this rank of a data-parallel run; that of rank 0 if `torch.distributed` is not in use.

    Different pairs of seed and rank give unrelated generators. Seeding with seed + rank would not: rank 1 of seed 0
    would be rank 0 of seed 1.

    Arguments:
        seed: of the run, the same for all ranks.
        device: of the generator.
    """
    refuse_transforms("rank_generator")
    rank = distributed.get_rank() if _ranks() > 1 else 0
    seeds = torch.randint(2**62, (rank + 1,), generator=torch.Generator().manual_seed(seed))
    return torch.Generator(device).manual_seed(int(seeds[rank]))


def _ranks() -> int:
    in_use = distributed.is_available() and distributed.is_initialized()
    return distributed.get_world_size() if in_use else 1


def _draw(distribution: str, like: Tensor, generator: torch.Generator | None) -> Tensor:
    # A generator draws only on its own device; one on the CPU gives the same probes for every device of the field.
    device = like.device if generator is None else generator.device
    try:
        if distribution == "gaussian":
            z = torch.randn(like.shape, generator=generator, dtype=like.dtype, device=device)
        else:
            z = torch.randint(2, like.shape, generator=generator, dtype=like.dtype, device=device).mul_(2).sub_(1)
    except RuntimeError as error:
        if transforming():
            raise ValueError(
                'probes are random, so vmap needs randomness="same" or "different" to decide whether all copies share '
                "them; or compute exactly (exact=True)."
            ) from error
        raise
    return z.to(like.device)
