"""Randomness that is drawn once a pass: one function in all evaluations of a pass, another in the next."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import resolvent as rs
from resolvent.blocks import FrozenRandomness
from resolvent.schemes import tableaux

CLOSE = rs.Stopping(rtol=1e-11, atol=1e-12)


class Dropped(nn.Module):
    """A contraction with dropout by a module and by a function, stochastic depth, and a record of what was drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.drop = nn.Linear(4, 4), nn.Dropout(0.4)
        self.drawn: list[Tensor] = []

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        kept = torch.rand(len(z), 1) > 0.3 if self.training else torch.ones(len(z), 1)
        mask = self.drop(torch.ones_like(z))
        self.drawn.append(torch.cat([kept, mask], 1))
        branch = nn.functional.dropout(torch.tanh(self.linear(mask * z)), 0.2, self.training)
        return 0.3 * kept * branch + x


class DroppedField(rs.fields.Field):
    def __init__(self) -> None:
        super().__init__()
        self.f = Dropped()

    def forward(self, t: Any, y: Tensor) -> Tensor:
        return self.f(y, -y)


def test_one_draw_in_all_evaluations_of_a_pass() -> None:
    f, x = Dropped(), torch.randn(5, 4)
    layer = rs.Equilibrium(FrozenRandomness(f), stopping=CLOSE)
    layer(x)  # The first call checks f.
    draws = []
    for _ in range(2):
        f.drawn.clear()
        layer(x).sum().backward()
        assert len(f.drawn) > 3
        assert all(torch.equal(drawn, f.drawn[0]) for drawn in f.drawn)
        draws.append(f.drawn[0])
    assert not torch.equal(*draws)


def test_the_equilibrium_and_its_gradient_are_those_of_the_masks() -> None:
    layer = rs.Equilibrium(FrozenRandomness(Dropped()), stopping=CLOSE)
    x = torch.randn(3, 4, requires_grad=True)
    weight = layer.f.module.linear.weight  # type: ignore[union-attr]

    def call(x: Tensor, weight: Tensor) -> Tensor:
        torch.manual_seed(3)
        return torch.func.functional_call(layer, {"f.module.linear.weight": weight}, (x,))

    call(x, weight)
    assert torch.autograd.gradcheck(call, (x, weight))


@pytest.mark.parametrize("memory", ["store", "checkpoint", "reversible"])
def test_recomputed_passes_use_the_same_numbers(memory: str) -> None:
    field = FrozenRandomness(DroppedField())
    block = rs.ThetaBlock(field, num_steps=3, horizon=0.5, stopping=CLOSE, memory=memory)
    x = torch.randn(2, 4, requires_grad=True)

    def call(x: Tensor) -> Tensor:
        torch.manual_seed(3)
        return block(x)

    call(x)
    assert torch.autograd.gradcheck(call, (x,))


def test_a_pass_takes_one_number_from_the_generator() -> None:
    """However many evaluations it makes, and whether it checks f or not."""
    layer = rs.Equilibrium(FrozenRandomness(Dropped()))
    after = []
    for stopping in (rs.Stopping(1e-2), rs.Stopping(1e-10), rs.Stopping(1e-10)):
        with rs.blocks.solved_with(layer, stopping=stopping):
            torch.manual_seed(7)
            layer(torch.ones(3, 4)).sum().backward()
            after.append(torch.rand(2))
    assert torch.equal(after[0], after[1])
    assert torch.equal(after[1], after[2])


def test_evaluation_mode_drops_nothing() -> None:
    f, x = Dropped(), torch.randn(3, 4)
    layer = rs.Equilibrium(FrozenRandomness(f), stopping=CLOSE).eval()
    torch.testing.assert_close(layer(x), rs.Equilibrium(f, stopping=CLOSE).eval()(x))


def test_outside_a_pass_numbers_are_drawn_as_usual() -> None:
    f = FrozenRandomness(Dropped())
    z, x = torch.randn(6, 4), torch.randn(6, 4)
    assert not torch.equal(f(z, x), f(z, x))


def test_attention_with_dropout() -> None:
    class Attending(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(4, 2, dropout=0.3, batch_first=True)

        def forward(self, z: Tensor, x: Tensor) -> Tensor:
            return 0.3 * self.attention(z, z, z, need_weights=False)[0] + x

    x = torch.randn(2, 3, 4)
    with pytest.raises(ValueError, match=r"rs\.blocks\.FrozenRandomness"):
        rs.Equilibrium(Attending())(x)
    layer = rs.Equilibrium(FrozenRandomness(Attending()), stopping=CLOSE)
    assert not torch.equal(layer(x), layer(x))


def test_integration() -> None:
    field, start = FrozenRandomness(DroppedField()), torch.randn(3, 4)

    def end(**options: Any) -> Tensor:
        torch.manual_seed(2)
        return rs.odeint(field, start, [0.0, 1.0], **options).final

    torch.testing.assert_close(end(rtol=1e-9), end(scheme=tableaux.KVAERNO5, rtol=1e-9), rtol=1e-6, atol=1e-6)


def test_a_part_of_a_function_may_be_frozen_and_must_be_registered() -> None:
    drop, x = FrozenRandomness(nn.Dropout(0.5)), torch.randn(8, 16)

    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop = drop

        def forward(self, z: Tensor, x: Tensor) -> Tensor:
            return 0.2 * self.drop(z.sin()) + x

    assert rs.Equilibrium(Part())(x).shape == (8, 16)
    with pytest.raises(ValueError, match="another result when it is called again"):
        rs.Equilibrium(lambda z, x: 0.2 * drop(z.sin()) + x)(x)


def test_batch_norm_stays_refused() -> None:
    with pytest.raises(ValueError, match="module, a BatchNorm1d, gives another result"):
        rs.Equilibrium(FrozenRandomness(nn.BatchNorm1d(3)), lambda: torch.ones(4, 3))()


def test_all_copies_of_a_vmapped_layer_share_their_numbers() -> None:
    layer = rs.Equilibrium(FrozenRandomness(Dropped()), stopping=CLOSE)
    x = torch.randn(3, 4)
    many = torch.stack([x, x])
    with pytest.raises(ValueError, match='take randomness="same" in vmap'):
        torch.func.vmap(layer)(many)
    first, second = torch.func.vmap(layer, randomness="same")(many)
    torch.testing.assert_close(first, second)


def test_what_a_field_declares_is_kept_but_for_its_rows() -> None:
    class Declared(DroppedField):
        rowwise = True
        autonomous = True
        linear_part = -0.5  # type: ignore[assignment]

    frozen = FrozenRandomness(Declared())
    assert (frozen.rowwise, frozen.autonomous, frozen.linear_part) == (False, True, -0.5)
    with pytest.raises(ValueError, match="must be a module or a function, got 3"):
        FrozenRandomness(3)  # type: ignore[arg-type]
