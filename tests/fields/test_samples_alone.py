"""What `rs.Autonomous` proves of a module, and what it must not."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations

import resolvent as rs
from seeding import shifted
from undeclared import assert_layers_agree


class Function(nn.Module):
    """A module with some weights and a `forward` that is given."""

    def __init__(self, forward, **modules: nn.Module) -> None:
        super().__init__()
        self.linear, self.back = nn.Linear(4, 4), nn.Linear(4, 4)
        self.scale, self.rows = nn.Parameter(torch.ones(4)), nn.Parameter(torch.rand(6, 4))
        self.batch = torch.rand(6, 4)
        self.body = forward

    def forward(self, y: Tensor) -> Tensor:
        return self.body(self, y)


ELSEWHERE = torch.rand(6, 4)
ALONE = {
    "a layer": nn.Linear(4, 4),
    "a chain": nn.Sequential(nn.Linear(4, 8), nn.Sequential(nn.Tanh(), nn.LayerNorm(8)), nn.Linear(8, 4)),
    "an activation first": nn.Sequential(nn.GELU(), nn.Linear(4, 4), nn.Softplus()),
    "a normalised weight": nn.Sequential(parametrizations.spectral_norm(nn.Linear(4, 4)), nn.Tanh()),
    "statistics that are fixed": nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)).eval(),
    "elementwise functions": Function(lambda m, y: torch.tanh(m.linear(y)).mul(m.scale) - 2 * y.sin() ** 2),
    "products with weights": Function(
        lambda m, y: y @ m.linear.weight + functional.linear(y, m.back.weight, m.back.bias)
    ),
    "two branches": Function(lambda m, y: functional.gelu(m.linear(y)) * torch.sigmoid(m.back(y))),
}
TOGETHER = {
    "the mean of the batch": Function(lambda m, y: torch.tanh(y - y.mean(0))),
    "a softmax over the batch": nn.Sequential(nn.Linear(4, 4), nn.Softmax(dim=0)),
    "rows in another order": Function(lambda m, y: m.linear(y.flip(0))),
    "rows that are joined": Function(lambda m, y: torch.cat([y[1:], y[:1]])),
    "the first row": Function(lambda m, y: y + y[0]),
    "weights for each row": Function(lambda m, y: m.linear(y) + m.rows),
    "a tensor for each row": Function(lambda m, y: m.linear(y) * m.batch),
    "a tensor from elsewhere": Function(lambda m, y: m.linear(y) * ELSEWHERE),
    "the Gram matrix": Function(lambda m, y: y @ y.T @ y),
    "a product from the left": Function(lambda m, y: m.rows @ y.T @ y),
    "noise": Function(lambda m, y: m.linear(y) + torch.rand_like(y)),
    "noise in training": Function(lambda m, y: m.linear(y) + torch.rand_like(y) if m.training else m.linear(y)),
    "a choice by the size of the batch": Function(lambda m, y: m.linear(y) if len(y) > 3 else m.back(y)),
    "batch norm": nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)),
    "batch norm with no running statistics": nn.BatchNorm1d(4, track_running_stats=False).eval(),
    "dropout": nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)),
    "a function": torch.tanh,
}


@pytest.mark.parametrize("name", ALONE)
def test_proved(name: str) -> None:
    # In training mode a normalised weight changes a little with every call.
    module = copy.deepcopy(ALONE[name]).double().eval()
    assert rs.Autonomous(module).rowwise
    assert rs.Autonomous(ALONE[name]).rowwise
    y = torch.randn(6, 4, generator=torch.Generator().manual_seed(shifted(0)))
    with torch.no_grad():
        alone = torch.cat([module(row) for row in y.split(1)])
        torch.testing.assert_close(alone, module(y))


@pytest.mark.parametrize("name", TOGETHER)
def test_not_proved(name: str) -> None:
    assert not rs.Autonomous(TOGETHER[name]).rowwise


class Attention(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(4), nn.MultiheadAttention(4, 2, **options)

    def forward(self, y: Tensor) -> Tensor:
        y = self.norm(y)
        return self.attention(y, y, y, need_weights=False)[0]


def test_attention_is_proved_where_it_mixes_tokens_and_not_samples() -> None:
    assert rs.Autonomous(Attention(batch_first=True)).rowwise
    assert not rs.Autonomous(Attention(batch_first=False)).rowwise
    dropout = rs.Autonomous(Attention(batch_first=True, dropout=0.1))
    assert not dropout.rowwise
    assert dropout.eval().rowwise


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_a_compiled_module_is_not_proved() -> None:
    assert not rs.Autonomous(torch.jit.trace(nn.Linear(4, 4), torch.zeros(6, 4))).rowwise


def test_the_word_of_the_user_counts() -> None:
    assert rs.Autonomous(torch.tanh, rowwise=True).rowwise
    assert not rs.Autonomous(nn.Linear(2, 2), rowwise=False).rowwise
    with pytest.raises(ValueError, match="True, False or None, got 'yes'"):
        rs.Autonomous(torch.tanh, rowwise="yes")  # type: ignore[arg-type]


def test_the_proof_is_of_the_module_as_it_is() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Tanh())
    field = rs.Autonomous(module)
    assert not field.rowwise
    assert field.eval().rowwise
    handle = module[0].register_forward_hook(lambda _, inputs, output: output - output.mean(0))
    assert not field.rowwise
    assert field.value_and_jacobian is None
    handle.remove()
    assert field.rowwise
    handle = field.register_forward_hook(lambda _, inputs, output: output - output.mean(0))
    assert not field.rowwise
    handle.remove()
    module[2] = nn.Softmax(dim=0)
    assert not field.rowwise


def test_the_proof_leaves_no_trace() -> None:
    """`forward` is run once to be traced; what it sets on the module then must not stay."""

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.calls, self.seen = nn.Linear(2, 2), 0, []

        def forward(self, y: Tensor) -> Tensor:
            self.calls += 1
            self.seen.append(y)
            return self.linear(y)

    module = Counting()
    field = rs.Autonomous(module)
    assert field.rowwise
    assert (module.calls, module.seen) == (0, [])
    copy.deepcopy(field)


@pytest.mark.parametrize("name", [name for name in ALONE if isinstance(ALONE[name], nn.Sequential | nn.Linear)])
def test_the_jacobian_of_a_chain(name: str) -> None:
    module = copy.deepcopy(ALONE[name]).double().eval()
    known = rs.Autonomous(module).value_and_jacobian
    if known is None:
        assert any(isinstance(part, nn.LayerNorm | nn.BatchNorm1d) for part in module.modules())
        return
    y = torch.randn(6, 4, generator=torch.Generator().manual_seed(shifted(1)), dtype=torch.float64)
    value, jacobian = known(0.0, y)
    expected = torch.stack([torch.autograd.functional.jacobian(lambda r: module(r[None])[0], row) for row in y])
    torch.testing.assert_close(value, module(y).detach())
    torch.testing.assert_close(jacobian, expected)


@pytest.mark.parametrize("mode", ["sequential", "auto"])
@pytest.mark.parametrize("name", ALONE)
def test_a_proved_field_gives_what_one_that_is_not_declared_does(name: str, mode: str) -> None:
    module = copy.deepcopy(ALONE[name]).double().eval()
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(shifted(2)), dtype=torch.float64)
    assert_layers_agree(module, x, 4, 0.8, mode)


class Masked(nn.Module):
    """Attention with a mask that it closes over."""

    def __init__(self, **masks: Tensor | None) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.shared, self.padding = masks.get("shared"), masks.get("padding")

    def forward(self, y: Tensor) -> Tensor:
        masks = {"attn_mask": self.shared, "key_padding_mask": self.padding}
        return self.attention(y, y, y, need_weights=False, **masks)[0]


def test_a_mask_for_all_samples_is_proved_and_one_for_each_is_not() -> None:
    causal, padding = torch.ones(5, 5).triu(1).bool(), torch.zeros(3, 5).bool()
    assert rs.Autonomous(Masked(shared=causal)).rowwise
    assert not rs.Autonomous(Masked(shared=causal.expand(6, 5, 5))).rowwise  # (batch * heads, tokens, tokens)
    assert not rs.Autonomous(Masked(padding=padding)).rowwise
    later = rs.Autonomous(Masked())
    assert later.rowwise
    later.module.padding = padding
    assert not later.rowwise
    later.module.padding = None
    assert later.rowwise


def test_a_layer_of_a_tensor_with_a_row_for_each_sample_is_not_proved() -> None:
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.register_buffer("table", torch.randn(3, 4))

        def forward(self, y: Tensor) -> Tensor:
            return y + self.linear(self.table)

    assert not rs.Autonomous(Table()).rowwise
