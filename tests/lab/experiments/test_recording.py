"""Training by recorded passes: a number of steps that is fixed, and the same gradients."""

from typing import Any

import pytest
import torch

import resolvent as rs
from lab.experiments.small_network import SMALL
from resolvent.solvers.resolve import solve_options
from resolvent_lab.experiments.mnist.config import MnistConfig
from resolvent_lab.experiments.mnist.network import Mnist
from seeding import shifted

IMPLICIT: dict[str, Any] = {
    **SMALL,
    "column": "small",
    "seed": 0,
    "theta": 1.0,
    "learn_scale": False,
    "init": "xavier",
}


@pytest.mark.parametrize("penalty", [{}, {"sensitivity": 0.1}], ids=["pass", "jvp"])
def test_failures_are_counted(penalty: dict[str, Any]) -> None:
    torch.set_default_dtype(torch.float32)
    options = {"rtol": 1e-6, "graph_steps": 30, **penalty}
    network = Mnist(MnistConfig(**IMPLICIT, **options)).train()
    batch = torch.rand(5, 1, 8, 8), torch.arange(5) % 4
    assert network.terms(batch)["failed_solves"] == 0
    for stage in network.model.stages:
        stage.options = solve_options(rs.Anderson(), rs.FixedSteps(1, rtol=1e-6), None, "ignore")
    assert network.terms(batch)["failed_solves"] > 0


def test_a_number_of_steps_below_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="graph_steps must be 0 or more, got -1"):
        MnistConfig(**IMPLICIT, graph_steps=-1)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
# The function that records keeps the graphs of its own trial passes on another stream.
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream does not match")
@pytest.mark.parametrize(
    "training",
    [{}, {"training": "noise"}, {"training": "adversarial"}, {"sensitivity": 0.1}],
    ids=["clean", "noise", "adversarial", "sensitivity"],
)
@pytest.mark.parametrize("theta", [0.0, 1.0])
def test_recorded_training_is_the_same_training(theta: float, training: dict[str, Any]) -> None:
    losses = []
    for graph_steps in (0, 30):
        torch.manual_seed(shifted(0))
        settings = {**IMPLICIT, "theta": theta, **training, "rtol": 1e-6, "graph_steps": graph_steps}
        network = Mnist(MnistConfig(**settings)).cuda().train()
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        losses.append([])
        for size in (6, 6, 4, 6):  # a smaller batch on the way
            batch = torch.rand(size, 1, 8, 8, device="cuda"), torch.arange(size, device="cuda") % 4
            terms = network.terms(batch)
            optimizer.zero_grad()
            terms["total"].backward()
            optimizer.step()
            assert terms["failed_solves"] == 0
            losses[-1].append(float(terms["total"].detach()))
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
