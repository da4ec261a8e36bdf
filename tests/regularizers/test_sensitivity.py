"""The penalty on what a network makes of small changes of its inputs."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import resolvent as rs
from seeding import shifted

TIGHT = rs.Stopping(rtol=1e-10)


def network(theta: float = 0.5, classes: int = 4) -> nn.Sequential:
    torch.manual_seed(shifted(0))
    block = rs.ThetaBlock(rs.fields.MLP(3, 5, 1), theta, 2, stopping=TIGHT)
    return nn.Sequential(nn.Linear(6, 3), block, nn.Linear(3, classes))


@pytest.mark.parametrize("distribution", ["gaussian", "rademacher"])
def test_its_mean_is_the_norm_of_the_jacobian(distribution: str) -> None:
    model, x = network(), torch.randn(1, 6)
    jacobian = torch.autograd.functional.jacobian(lambda x: model(x[None])[0], x[0])
    p = model(x)[0].detach().softmax(0)
    exact = {
        "square": jacobian.square().sum() / 4,
        "variance": (jacobian - jacobian.mean(0)).square().sum() / 4,
        "softmax": (p[:, None] * (jacobian - p @ jacobian).square()).sum(),
    }
    for measure, expected in exact.items():
        generator = torch.Generator().manual_seed(shifted(0))
        penalise = rs.regularizers.Sensitivity(2.0, measure, distribution, generator)
        with torch.no_grad():
            got = penalise(model, x.expand(20_000, -1)).penalty
        # The sample mean of 20,000 squares that vary by about their own size.
        assert got == pytest.approx(2 * expected.item(), rel=0.04)


def test_for_softmax_it_is_what_small_noise_adds_to_the_loss() -> None:
    """Exactly, for a network that is linear: both probes and noise are averaged away."""
    model, x, s = nn.Sequential(nn.Linear(6, 4)), torch.randn(1, 6), 0.02
    noise = torch.randn(400_000, 6, generator=torch.Generator().manual_seed(shifted(1)))
    labels = torch.zeros(len(noise), dtype=torch.long)
    with torch.no_grad():
        # Each draw and its negative: the first order drops out.
        added = sum(cross_entropy(model(x + sign * s * noise), labels) for sign in (1, -1)) / 2
        added = added - cross_entropy(model(x), labels[:1])
        penalty = rs.regularizers.Sensitivity(s**2 / 2, "softmax")(model, x.expand(400_000, -1)).penalty
    assert added == pytest.approx(penalty.item(), rel=0.01)


@pytest.mark.parametrize("measure", [pytest.param("square", marks=pytest.mark.slow), "variance", "softmax"])
@pytest.mark.parametrize("theta", [0.0, 0.5, pytest.param(1.0, marks=pytest.mark.slow)])
def test_its_gradient_is_exact(theta: float, measure: str) -> None:
    model, x = network(theta), torch.randn(3, 6)
    generator = torch.Generator()

    def penalty(*_: torch.Tensor) -> torch.Tensor:
        generator.manual_seed(shifted(0))
        return rs.regularizers.Sensitivity(1.0, measure, generator=generator)(model, x).penalty

    assert torch.autograd.gradcheck(penalty, tuple(model.parameters()))


def test_what_all_scores_share_does_not_count() -> None:
    model = nn.Sequential(nn.Linear(6, 1), nn.Linear(1, 4))
    nn.init.ones_(model[1].weight)
    x = torch.randn(5, 6)
    assert rs.regularizers.Sensitivity(1.0, "variance")(model, x).penalty < 1e-25
    assert rs.regularizers.Sensitivity(1.0, "softmax")(model, x).penalty < 1e-25
    assert rs.regularizers.Sensitivity(1.0)(model, x).penalty > 1e-3


def test_the_outputs_are_those_of_the_network_and_each_call_draws_anew() -> None:
    model, x = network(), torch.randn(5, 6)
    first, second = (rs.regularizers.Sensitivity()(model, x) for _ in range(2))
    torch.testing.assert_close(first.outputs, model(x), rtol=1e-8, atol=1e-8)
    assert first.penalty != second.penalty
    assert first.jvp is not None
    assert len(first.jvp.trajectories) == 1


def test_a_weight_of_zero_costs_nothing() -> None:
    calls = 0

    def model(x: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return x

    outputs, penalty, jvp = rs.regularizers.Sensitivity(0.0)(model, torch.ones(2, 3))
    assert (calls, penalty, jvp) == (1, 0, None)
    assert outputs.shape == (2, 3)


def test_what_is_wrong_is_said() -> None:
    with pytest.raises(ValueError, match="weight must be a finite number, 0 or more, got -1"):
        rs.regularizers.Sensitivity(-1)
    with pytest.raises(ValueError, match=r"measure must be one of .*, got 'margin'"):
        rs.regularizers.Sensitivity(measure="margin")
    with pytest.raises(ValueError, match=r"takes scores of classes, \(batch, classes\), got \(2, 3, 4\)"):
        rs.regularizers.Sensitivity(measure="variance")(nn.Identity(), torch.ones(2, 3, 4))
