"""Inside of `attackable` gradients are those of the solution, and afterwards the model is as it was."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import resolvent as rs
from lab.robustness.classifiers import patterns, theta_network
from resolvent.extending import Adjoint
from resolvent_lab.robustness import attackable

SLOPPY: dict[str, Any] = {"stopping": rs.Stopping(rtol=0.3), "adjoint": rs.OneStepAdjoint()}
EXACT: dict[str, Any] = {"stopping": rs.Stopping(rtol=1e-13)}


def gradient(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    images = images.clone().requires_grad_()
    return torch.autograd.grad(F.cross_entropy(model(images), labels), images)[0]


def relative_error(value: Tensor, exact: Tensor) -> float:
    return float((value - exact).norm() / exact.norm())


LOOSE = rs.ImplicitAdjoint(solver=rs.GMRES(), stopping=rs.Stopping(rtol=0.5))


@pytest.mark.parametrize("adjoint", [rs.OneStepAdjoint(), LOOSE])
def test_gradients_are_exact(adjoint: Adjoint) -> None:
    case = patterns(5)
    # A guess that is given may be accepted as it is.
    stopping = rs.Stopping(rtol=0.3)
    sloppy = theta_network(1.0, solver=rs.Picard(), stopping=stopping, adjoint=adjoint, guess="previous")
    exact = theta_network(1.0, **EXACT)
    exact.load_state_dict(sloppy.state_dict())
    expected = gradient(exact, *case)
    assert relative_error(gradient(sloppy, *case), expected) > 1e-4
    with attackable(sloppy, rtol=1e-10):
        assert relative_error(gradient(sloppy, *case), expected) < 1e-8


def test_a_tolerance_of_the_models_own_is_kept_where_it_is_tighter() -> None:
    for own, expected in ((1e-12, 1e-12), (1e-2, 1e-6), (None, None)):
        model = theta_network(stopping=rs.Stopping(rtol=own))
        with attackable(model, rtol=1e-6):
            assert model[2].options.stopping.rtol == expected


def test_the_model_is_restored_even_after_an_error() -> None:
    model = nn.Sequential(nn.BatchNorm2d(1), *theta_network(**SLOPPY)).train()
    model[0].eval()
    model[2].weight.requires_grad_(False)
    solving = model[3].options
    with pytest.raises(RuntimeError, match="on purpose"), attackable(model):  # noqa: PT012
        assert not any(module.training for module in model.modules())
        assert not any(parameter.requires_grad for parameter in model.parameters())
        assert model[3].options is not solving
        raise RuntimeError("on purpose")
    assert model[3].options is solving
    assert [module.training for module in model] == [False, True, True, True, True]
    assert [parameter for parameter in model.parameters() if not parameter.requires_grad] == [model[2].weight]


def test_training_goes_on_afterwards() -> None:
    """Weights that were computed once for the attack are not those of the next step of training."""
    model, (images, labels) = theta_network(), patterns(5)
    with attackable(model):
        model(images)
    before = model(images)
    F.cross_entropy(before, labels).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1
    with attackable(model):
        assert not torch.allclose(model(images), before)
