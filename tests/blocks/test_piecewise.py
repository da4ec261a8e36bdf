"""A set of weights for every layer: which step sees which piece."""

import copy

import pytest
import torch
from torch import Tensor, nn

import resolvent as rs
from resolvent import Stopping, fields, schemes
from resolvent.blocks import Block, ThetaBlock
from schemes.catalogue import RUNGE_KUTTA, SCHEMES, THETA, column

STEPS = 7


class Constant(fields.Field):
    """F = k, whatever the state: the increments of a pass tell which pieces it used."""

    rowwise = True
    autonomous = True

    def __init__(self, k: float) -> None:
        super().__init__()
        self.k = k

    def forward(self, t: float | Tensor, y: Tensor) -> Tensor:
        return torch.full_like(y, self.k)


def numbered(horizon: float | None = None, pieces: int = STEPS) -> fields.Piecewise:
    return fields.Piecewise([Constant(k) for k in range(pieces)], horizon)


@pytest.mark.parametrize("name", [*THETA, *RUNGE_KUTTA])
@pytest.mark.parametrize("horizon", [1.0, 2.1, 0.7])
def test_every_step_has_its_own_piece_whatever_the_stage_times(name: str, horizon: float) -> None:
    """Also where a stage lies at the end of the step, which is the first point of the next piece."""
    states = Block(numbered(horizon), SCHEMES[name], STEPS, horizon).trajectory(torch.zeros(1, 1)).states
    expected = torch.arange(STEPS) * horizon / STEPS
    torch.testing.assert_close(states.flatten().diff(), expected, atol=1e-9, rtol=0)


@pytest.mark.parametrize("form", ["midpoint", "trapezoid"])
@pytest.mark.parametrize("theta", [0.0, 0.25, 0.5, 0.75, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_layers_and_pieces_coincide_in_every_dtype(theta: float, form: str, dtype: torch.dtype) -> None:
    x = torch.zeros(3, 1, dtype=dtype)
    block = ThetaBlock(numbered(0.7), theta, STEPS, 0.7, form)
    for t0 in (0.0, torch.zeros(3, dtype=dtype), torch.zeros(())):
        increments = block.trajectory(x, t0).states.diff(dim=0)[:, 0, 0] / 0.1
        torch.testing.assert_close(increments, torch.arange(STEPS, dtype=dtype), atol=1e-4, rtol=0)


@pytest.mark.parametrize("theta", [0.0, 0.3, 0.5, 0.9, 1.0])
def test_off_the_grid_the_piece_is_that_of_the_stage_time(theta: float) -> None:
    """Index floor((t_n + theta h) / h), and floor(t_n / h) for theta = 1, sample by sample."""
    h = 0.1
    t0 = torch.tensor([0.0, 0.02, 0.05, 0.13, 0.29])
    states = ThetaBlock(numbered(2.0, 20), theta, 20, 20 * h).trajectory(torch.zeros(5, 1), t0).states[:5]
    increments = states.diff(dim=0).squeeze(2) / h
    for n in range(4):
        stage = t0 + n * h + (theta * h if theta < 1 else 0.0)
        torch.testing.assert_close(increments[n], (stage / h + 1e-9).floor(), atol=1e-8, rtol=0)


def test_pieces_that_depend_on_time_keep_it() -> None:
    """F_k = k + t: the end of a step belongs to its piece, but time there is the end's."""

    class Ramp(Constant):
        autonomous = False

        def forward(self, t: float | Tensor, y: Tensor) -> Tensor:
            return self.k + column(t, y).expand_as(y)

    field = fields.Piecewise([Ramp(k) for k in range(4)], 2.0)
    states = ThetaBlock(field, 1.0, 4, 2.0).trajectory(torch.zeros(2, 1)).states[:, 0, 0]
    expected = 0.5 * torch.tensor([0 + 0.5, 1 + 1.0, 2 + 1.5, 3 + 2.0])
    torch.testing.assert_close(states.diff(), expected, atol=1e-6, rtol=0)


def test_per_sample_start_without_a_loop_over_samples() -> None:
    """Calls of the pieces grow with the number of pieces in use, not with that of samples."""
    calls = 0

    class Counted(Constant):
        def forward(self, t: float | Tensor, y: Tensor) -> Tensor:
            nonlocal calls
            calls += 1
            return super().forward(t, y)

    def count(batch: int) -> int:
        nonlocal calls
        calls = 0
        field = fields.Piecewise([Counted(k) for k in range(5)], 1.0)
        ThetaBlock(field, 0.0, 5, 1.0)(torch.zeros(batch, 1), torch.linspace(0.0, 0.6, batch))
        return calls

    assert count(4) == count(400)


def test_piecewise_is_the_network_with_a_layer_for_each_piece() -> None:
    pieces = [fields.MLP(3, 8, 1) for _ in range(4)]
    x = torch.randn(5, 3)
    block = ThetaBlock(fields.Piecewise(pieces, 2.0), 1.0, 4, 2.0, mode="sequential")
    y = x
    for piece in pieces:
        y = ThetaBlock(piece, 1.0, 1, 0.5)(y)
    torch.testing.assert_close(block(x), y, atol=1e-9, rtol=0)
    assert schemes.Theta(1.0) == block.scheme


@pytest.mark.parametrize("memory", ["checkpoint", "reversible"])
def test_the_way_back_uses_the_same_pieces(memory: str) -> None:
    pieces = [fields.MLP(3, 8, 1) for _ in range(4)]
    t0 = torch.tensor([0.0, 0.13, 0.5])
    x = torch.randn(3, 3, requires_grad=True)
    sharp = Stopping(rtol=1e-11, atol=1e-12)
    for theta in (0.0, 0.5, 1.0):
        expected, got = (
            torch.autograd.grad(
                ThetaBlock(fields.Piecewise(pieces, 2.0), theta, 4, 2.0, memory=policy, stopping=sharp)(x, t0)
                .pow(2)
                .sum(),
                x,
            )[0]
            for policy in ("store", memory)
        )
        torch.testing.assert_close(got, expected, atol=1e-8, rtol=0)


def test_interpolation_takes_slopes_from_the_side_of_the_step() -> None:
    """Piecewise constant slopes make straight lines with kinks, which cubics reproduce only with one-sided slopes."""
    block = ThetaBlock(numbered(1.4), 0.5, STEPS, 1.4)
    times = torch.linspace(0.0, 1.4, 29)
    expected = torch.stack([sum(min(max(t - 0.2 * k, 0.0), 0.2) * k for k in range(STEPS)) for t in times])
    torch.testing.assert_close(block.interpolate(torch.zeros(1, 1), times).flatten(), expected, atol=1e-9, rtol=0)


@pytest.mark.parametrize("horizon", [5.0, 0.3, torch.tensor(2.0, dtype=torch.float64)])
def test_the_block_says_the_horizon(horizon: float | Tensor) -> None:
    """All pieces are used, one per step, and backwards in time, too."""
    field = numbered()
    increments = ThetaBlock(field, 0.5, STEPS, horizon).trajectory(torch.zeros(1, 1)).states.flatten().diff()
    h = float(horizon) / STEPS
    torch.testing.assert_close(increments / h, torch.arange(7.0), atol=1e-8, rtol=0)
    back = ThetaBlock(numbered(), 0.5, STEPS, -horizon).trajectory(torch.zeros(1, 1), float(horizon)).states
    torch.testing.assert_close(back.flatten().diff() / -h, torch.arange(7.0).flip(0), atol=1e-8, rtol=0)


def test_a_learned_horizon_takes_the_pieces_with_it() -> None:
    horizon = nn.Parameter(torch.tensor(1.0))
    block = ThetaBlock(numbered(), 0.5, STEPS, horizon)
    for value in (1.0, 3.0, 0.5):
        with torch.no_grad():
            horizon.fill_(value)
        for copied in (block, copy.deepcopy(block)):
            states = copied.trajectory(torch.zeros(1, 1)).states
            increments = states.detach().flatten().diff() * STEPS / value
            torch.testing.assert_close(increments, torch.arange(7.0), atol=1e-8, rtol=0)
    assert "field.horizon" not in block.state_dict()


def test_a_learned_horizon_reaches_normalised_pieces() -> None:
    """A pass works with a copy of them, which has to know the present horizon, too."""
    horizon = nn.Parameter(torch.tensor(1.0))
    pieces = [fields.MLP(3, 8, 1, bound=1.0) for _ in range(3)]
    block = ThetaBlock(fields.Piecewise(pieces), 1.0, 3, horizon)
    x = torch.randn(5, 3)
    block(x)
    with torch.no_grad():
        horizon.fill_(3.0)
    y = x
    for piece in pieces:
        y = ThetaBlock(piece, 1.0, 1, 1.0)(y)
    torch.testing.assert_close(block(x), y, atol=1e-8, rtol=0)


def test_two_horizons_are_refused() -> None:
    with pytest.raises(ValueError, match=r"5 fields of Piecewise are spread over a horizon of 1,.* this block has 5: "):
        ThetaBlock(numbered(1.0, 5), 0.5, 5, 5.0)
    field = numbered()
    ThetaBlock(field, 0.5, STEPS, 2.0)
    ThetaBlock(field, 1.0, 3, -2.0)  # The same pieces in other steps, and backwards.
    with pytest.raises(
        ValueError, match=r"horizon of 2, .* this block has 3: leave it to the block, Piecewise\(fields\)"
    ):
        ThetaBlock(field, 0.5, STEPS, 3.0)
    with pytest.raises(ValueError, match=r"horizon of 2, .* this block has a tensor, which may change"):
        ThetaBlock(field, 0.5, STEPS, nn.Parameter(torch.tensor(2.0)))
    nested = rs.fields.Partitioned(numbered(1.0), numbered(1.0))
    with pytest.raises(ValueError, match=r"horizon of 1, .* this block has 2"):
        Block(nested, rs.schemes.VERLET, STEPS, 2.0)


def test_a_horizon_that_was_changed_is_refused_in_the_next_pass() -> None:
    block = ThetaBlock(numbered(), 0.5, STEPS, 1.0)
    block.horizon = 5.0
    with pytest.raises(ValueError, match=r"horizon of 1, .* this block has 5"):
        block(torch.zeros(1, 1))
