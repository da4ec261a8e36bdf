"""Where probes come from: generators, seeds, ranks."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
import torch
from torch import distributed

from resolvent import estimators
from resolvent.estimators import Probes, rank_generator
from seeding import shifted


def draw(**options: object) -> torch.Tensor:
    return torch.stack(list(Probes(**options).draw(torch.zeros(4, 3))))


@pytest.mark.parametrize("distribution", ["gaussian", "rademacher"])
def test_a_generator_makes_runs_reproducible_and_probes_new_in_each_call(distribution):
    A, y = torch.randn(3, 3), torch.zeros(4, 3)
    runs = []
    for _ in range(2):
        generator = torch.Generator().manual_seed(shifted(7))
        runs.append(
            [
                estimators.trace(lambda y: y @ A, None, y, distribution=distribution, generator=generator)
                for _ in range(2)
            ]
        )
    assert torch.equal(runs[0][0], runs[1][0])
    assert torch.equal(runs[0][1], runs[1][1])
    assert not torch.equal(runs[0][0], runs[0][1])


def test_a_generator_of_ones_own_leaves_torchs_alone():
    state = torch.get_rng_state()
    draw(generator=torch.Generator().manual_seed(shifted(0)))
    assert torch.equal(state, torch.get_rng_state())


def test_without_a_generator_torchs_seed_decides():
    torch.manual_seed(shifted(3))
    first, second = draw(), draw()
    torch.manual_seed(shifted(3))
    assert torch.equal(first, draw())
    assert not torch.equal(first, second)


def test_entries_have_mean_0_and_variance_1():
    for distribution in ("gaussian", "rademacher"):
        z = next(Probes(distribution=distribution).draw(torch.zeros(100_000)))
        assert abs(z.mean()) < 0.013
        assert abs(z.var() - 1) < 0.02
    assert set(z.tolist()) == {-1.0, 1.0}


def test_all_probes_and_rows_are_different():
    z = draw(count=3).flatten(0, 1)
    assert len(z.unique(dim=0)) == 12


@pytest.fixture
def become_rank(monkeypatch):
    """Poses as one of several processes."""

    def become(rank: int) -> None:
        monkeypatch.setattr(distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(distributed, "get_world_size", lambda: 3)
        monkeypatch.setattr(distributed, "get_rank", lambda: rank)

    return become


def test_each_rank_has_probes_of_its_own_though_all_have_one_seed(become_rank):
    drawn, states = [], []
    for rank in range(3):
        become_rank(rank)
        torch.manual_seed(shifted(0))
        drawn += [draw(), draw()]
        states.append(torch.get_rng_state())
    assert len(torch.cat(drawn).flatten(1).unique(dim=0)) == 6
    assert torch.equal(states[0], states[1])
    become_rank(1)
    torch.manual_seed(shifted(0))
    assert torch.equal(draw(), drawn[2])


def test_generators_of_ranks_and_seeds_are_all_different(become_rank):
    assert torch.equal(draw(generator=rank_generator(5)), draw(generator=rank_generator(5)))
    drawn = [draw(generator=rank_generator(0)), draw(generator=rank_generator(1))]
    for rank in (1, 2):
        become_rank(rank)
        drawn += [draw(generator=rank_generator(0)), draw(generator=rank_generator(1))]
    assert len(torch.cat(drawn).flatten(1).unique(dim=0)) == 6


SCRIPT = """
import sys
import torch
from torch import distributed
from resolvent.estimators import Probes, rank_generator
rank, store = int(sys.argv[1]), sys.argv[2]
distributed.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
torch.manual_seed(0)
torch.set_num_threads(1)
for probes in (Probes(), Probes(generator=rank_generator(0))):
    z = next(probes.draw(torch.zeros(8)))
    both = [torch.zeros(8), torch.zeros(8)]
    distributed.all_gather(both, z)
    assert not torch.isclose(both[0], both[1]).any(), both
distributed.destroy_process_group()
print("different")
"""


@contextmanager
def _rank(rank: int, store: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is ended, and whose pipes are closed, whatever becomes of the test."""
    command = [sys.executable, "-c", SCRIPT, str(rank), store]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.slow
def test_two_processes_draw_different_probes(tmp_path):
    if not distributed.is_gloo_available():
        pytest.skip("torch was built without gloo")
    with ExitStack() as started:
        ranks = [started.enter_context(_rank(rank, str(tmp_path / "store"))) for rank in (0, 1)]
        for process in ranks:
            out, err = process.communicate(timeout=600)
            assert process.returncode == 0, err.decode()
            assert out.decode().strip() == "different"
