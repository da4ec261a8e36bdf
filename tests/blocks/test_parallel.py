"""Layers that are solved for together give what they give one after the other."""

import pytest
import torch
from torch import Tensor, nn

import resolvent as rs
from resolvent import fields
from resolvent.blocks import ThetaBlock

TIGHT = rs.Stopping(rtol=1e-12, atol=1e-13)


class Forced(fields.Field):
    """Depends on time, and treats samples alone."""

    rowwise = True

    def __init__(self) -> None:
        super().__init__()
        self.inner = fields.MLP(3, 8, 1)

    def forward(self, t: float | Tensor, y: Tensor) -> Tensor:
        time = torch.as_tensor(t, dtype=y.dtype).reshape(-1, 1)
        return self.inner(t, y) * torch.cos(3 * time) - y


def piecewise() -> fields.Piecewise:
    return fields.Piecewise([fields.MLP(3, 8, 1) for _ in range(6)], 1.2)


def results(block: ThetaBlock, x: Tensor, t0: float | Tensor) -> list[Tensor]:
    states = block.trajectory(x, t0).states
    weights = torch.sin(torch.arange(states.numel(), dtype=states.dtype)).reshape(states.shape)
    tensors = [x, *block.parameters()]
    return [states, *torch.autograd.grad((weights * states).sum(), tensors)]


@pytest.mark.parametrize("theta", [0.2, 0.5, 0.8, 1.0])
@pytest.mark.parametrize(
    "make", [lambda: fields.MLP(3, 8, 2), Forced, piecewise], ids=["autonomous", "timed", "pieces"]
)
@pytest.mark.parametrize("t0", [0.0, torch.tensor([0.0, 0.1, 0.4, 0.2, 0.6])], ids=["one start", "own starts"])
def test_the_same_states_and_gradients(theta: float, make: type, t0: float | Tensor) -> None:
    field, x = make(), torch.randn(5, 3, requires_grad=True)
    together, apart = (
        ThetaBlock(field, theta, 6, 1.2, stopping=TIGHT, mode=mode) for mode in ("parallel", "sequential")
    )
    for ours, reference in zip(results(together, x, t0), results(apart, x, t0), strict=True):
        torch.testing.assert_close(ours, reference, atol=1e-9, rtol=1e-9)
    assert together.trajectory(x, t0).evaluations < apart.trajectory(x, t0).evaluations


def test_learned_theta_and_horizon() -> None:
    field, x = fields.MLP(3, 8, 2), torch.randn(5, 3, requires_grad=True)
    for theta in (0.3, 0.7):
        blocks = [
            ThetaBlock(field, theta, 6, nn.Parameter(torch.tensor(1.2)), stopping=TIGHT, learn_theta=True, mode=mode)
            for mode in ("parallel", "sequential")
        ]
        for ours, reference in zip(*(results(block, x, 0.0) for block in blocks), strict=True):
            torch.testing.assert_close(ours, reference, atol=1e-9, rtol=1e-9)


def test_second_derivatives() -> None:
    field, x = fields.MLP(2, 4, 1, nn.Tanh()), torch.randn(2, 2, requires_grad=True)
    block = ThetaBlock(field, 0.5, 3, 0.9, stopping=TIGHT, adjoint=rs.ImplicitAdjoint(order=2), mode="parallel")
    assert torch.autograd.gradcheck(block, (x,))
    assert torch.autograd.gradgradcheck(block, (x,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("theta", [0.25, 0.5, 1.0])
def test_the_equation_of_every_layer_holds_to_the_tolerance(theta: float, dtype: torch.dtype) -> None:
    torch.set_default_dtype(dtype)
    field, x = fields.MLP(2, 10, 2), 2 * torch.randn(20, 2)
    states = ThetaBlock(field, theta, 70, 14.0, mode="parallel").trajectory(x).states
    x, y = states[:-1], states[1:]
    stage = (1 - theta) * x + theta * y
    defect = y - x - 0.2 * field(0.0, stage.flatten(0, 1)).reshape(x.shape)
    tolerance = rs.Stopping().relative(dtype)
    assert (defect.norm(dim=2) <= 2 * tolerance * x.norm(dim=2)).all()


@pytest.mark.parametrize(
    ("unknowns", "step", "expected"),
    [(2, 1.0, [17, 16]), (4, 1.0, [7, 7, 7, 7, 5]), (4, -0.25, [11, 11, 11]), (4, 0.1, [17, 16]), (40, 0.1, [11] * 3)],
    ids=["Newton", "long steps", "backwards", "short steps", "many unknowns"],
)
def test_many_layers_are_solved_for_in_groups_of_like_size(unknowns: int, step: float, expected: list[int]) -> None:
    field = fields.MLP(unknowns, 8, 1)
    for parameter in field.parameters():
        nn.init.normal_(parameter, std=0.05)
    block = ThetaBlock(field, 0.5, 33, 33 * step, mode="parallel")
    sizes = [solution.value.shape[1] for solution in block.trajectory(torch.randn(5, unknowns)).solutions]
    assert sizes == expected


def test_groups_do_not_depend_on_a_learned_step() -> None:
    horizon = nn.Parameter(torch.tensor(0.3))
    block = ThetaBlock(fields.MLP(4, 8, 1), 0.5, 16, horizon, mode="parallel")
    assert [solution.value.shape[1] for solution in block.trajectory(torch.randn(5, 4)).solutions] == [8, 8]


class Steep(fields.Field):
    """Newton's method for all layers at once runs into its flat parts; for one after the other it does not."""

    rowwise = True
    autonomous = True

    def forward(self, t: float | Tensor, y: Tensor) -> Tensor:
        return -20 * torch.atan(30 * y)


def test_layers_that_are_not_found_together_are_found_one_after_the_other() -> None:
    x = torch.linspace(-8.0, 8.0, 7)[:, None]
    together, apart = (
        ThetaBlock(Steep(), 0.5, 8, 1.6, stopping=TIGHT, mode=mode).trajectory(x) for mode in ("parallel", "sequential")
    )
    assert len(together.solutions) == 8
    torch.testing.assert_close(together.states, apart.states, atol=1e-9, rtol=1e-9)


def test_failure_is_as_loud() -> None:
    class Rootless(fields.Field):
        rowwise = True
        autonomous = True

        def forward(self, t: float | Tensor, y: Tensor) -> Tensor:
            return y**2 + 1

    block = ThetaBlock(Rootless(), 1.0, 4, 4.0, mode="parallel")
    with pytest.raises(rs.ConvergenceError, match="did not converge"):
        block(torch.ones(2, 1))


def test_auto_is_parallel_where_it_can_be() -> None:
    field, x = fields.MLP(3, 8, 1), torch.randn(5, 3)
    number = {
        name: len(ThetaBlock(field, 0.5, 6, 1.2, **options).trajectory(x).solutions)
        for name, options in {
            "default": {},
            "sequential": {"mode": "sequential"},
            "solver": {"solver": rs.Newton()},
            "guess": {"guess": "explicit"},
            "form": {"form": "trapezoid"},
            "memory": {"memory": "checkpoint"},
        }.items()
    }
    assert number == {"default": 1} | dict.fromkeys(["sequential", "solver", "guess", "form", "memory"], 6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "together"}, "mode must be one of"),
        ({"form": "trapezoid"}, "midpoint form"),
        ({"memory": "reversible"}, "keeps all layers in memory"),
        ({"solver": rs.Anderson()}, "accepts no other solver"),
        ({"reuse": True}, "accepts no other solver"),
        ({"adjoint": rs.UnrolledAdjoint()}, "cannot be unrolled"),
    ],
)
def test_what_stands_in_the_way_is_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ThetaBlock(fields.MLP(3, 8, 1), 0.5, 6, 1.2, **{"mode": "parallel"} | options)


def test_a_field_of_the_whole_batch_stands_in_the_way() -> None:
    with pytest.raises(ValueError, match="treats samples alone"):
        ThetaBlock(fields.Autonomous(nn.Linear(3, 3), rowwise=False), 0.5, 6, 1.2, mode="parallel")


class Stiff(fields.Field):
    rowwise = True
    autonomous = True

    def forward(self, t: float | Tensor, y: Tensor) -> Tensor:
        return -1e5 * (y - y.cos())


def test_stiff_layers_hold_to_the_tolerance() -> None:
    """The slope at a stage that is off by a rounding error is off by far more."""
    x = torch.linspace(0.2, 2.0, 5)[:, None]
    together, apart = (ThetaBlock(Stiff(), 0.6, 8, 8.0, mode=mode).trajectory(x) for mode in ("parallel", "sequential"))
    torch.testing.assert_close(together.states, apart.states, atol=0.0, rtol=1e-8)


def test_stages_are_solved_for_again_where_states_would_be_off() -> None:
    """Slopes of 1e3 enlarge what the first tolerance left: one more step of Newton's method, not a solve per layer."""
    field = fields.Bounded(fields.MLP(2, 20, 2, bound=1.0), -1e3, 0.0, scale=0.5)
    block, exact = (
        ThetaBlock(field, 0.5, 5, 5.0, stopping=rs.Stopping(rtol=rtol, atol=0.0), mode=mode)
        for rtol, mode in ((1e-6, "auto"), (1e-13, "sequential"))
    )
    x = torch.randn(20, 2)
    trajectory = block.trajectory(x)
    (solution,) = trajectory.solutions
    assert solution.steps.min() >= 2
    assert solution.evaluations >= 4  # of both solves
    torch.testing.assert_close(trajectory.states, exact.trajectory(x).states, atol=1e-5, rtol=1e-5)


def test_groups_do_not_depend_on_the_number_of_samples() -> None:
    block = ThetaBlock(fields.MLP(3, 8, 1), 0.5, 6, 1.2)
    assert [len(block.trajectory(torch.randn(samples, 3)).solutions) for samples in (1, 101, 2000)] == [1, 1, 1]
