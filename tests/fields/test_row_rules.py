"""Which functions in a `forward` are known to treat samples alone, and which uses of them do not."""

import copy
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import resolvent as rs
from seeding import shifted
from undeclared import assert_layers_agree


class Own(nn.Module):
    """A module with some weights and a `forward` that is given."""

    def __init__(self, body: Callable[["Own", Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second, self.wide = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 8)
        self.narrow, self.pair = nn.Linear(8, 4), nn.Linear(2, 2)
        self.gain, self.matrix, self.table = (nn.Parameter(torch.rand(size)) for size in ((4,), (4, 4), (6, 4)))
        self.vector, self.first_row = nn.Parameter(torch.rand(4)), nn.Parameter(torch.zeros(0))
        self.convolution = nn.Conv2d(6, 6, 1)
        self.body = body

    def forward(self, y: Tensor) -> Tensor:
        return self.body(self, y)


def _gated(m: Own, y: Tensor) -> Tensor:
    value, gate = m.wide(y).chunk(2, dim=-1)
    return m.first(value * torch.sigmoid(gate))


def _in_place(m: Own, y: Tensor) -> Tensor:
    h = m.first(y)
    h += m.second(y)
    return h.mul_(2.0).relu_()


def _columns(m: Own, y: Tensor) -> Tensor:
    a, b, c, d = y[:, 0], y[:, 1], y[..., 2], y[..., -1]
    return torch.stack((a * (1.5 - b), b * (a - 3), c.sin(), d), dim=-1)


def _unbound(m: Own, y: Tensor) -> Tensor:
    a, b, c, d = y.unbind(-1)
    return torch.stack([a - a * b, a * b - b, c, -d], 1)


def _halves(m: Own, y: Tensor) -> Tensor:
    a, b = torch.split(y, [2, 2], dim=1)
    return torch.cat((m.pair(b), -m.pair(a)), dim=1)


def _tokens(m: Own, y: Tensor) -> Tensor:
    q = m.first(y).view(y.size(0), 2, 2)
    return torch.flatten(functional.softmax(q @ q.transpose(1, 2), -1) @ q, 1)


def _attention(m: Own, y: Tensor) -> Tensor:
    q = m.first(y).reshape(y.shape[0], 2, 2)
    return functional.scaled_dot_product_attention(q, q, q).reshape(y.shape)


def _unsqueezed_in_place(m: Own, y: Tensor) -> Tensor:
    h = m.first(y)
    h.unsqueeze_(1)
    return (h + y).mean(1)


def _copy_changed(m: Own, y: Tensor) -> Tensor:
    part = m.first(y)[:, :2]
    other = part.contiguous()  # A copy only where there are several rows.
    other += 1.0
    return torch.cat([part, other], 1)


def _view_changed(m: Own, y: Tensor) -> Tensor:
    part = m.first(y)[:, :2]
    other = part.reshape(y.shape[0], 2)
    part.mul_(2.0)
    return torch.cat([part, other], 1)


def _weight_changed(m: Own, y: Tensor) -> Tensor:
    gain = m.gain
    gain *= 2.0
    return gain * y


def _written(function: Callable[..., Tensor], *settings: int) -> Callable[[Own, Tensor], Tensor]:
    def body(m: Own, y: Tensor) -> Tensor:
        function(y, *settings, out=m.first_row)
        return y - m.first_row.mean(0)

    return body


ALONE: dict[str, Callable[[Own, Tensor], Tensor]] = {
    "features that are joined": lambda m, y: m.narrow(torch.cat([y, y**2], dim=1)),
    "Fourier features": lambda m, y: m.narrow(torch.cat((torch.sin(y @ m.matrix), torch.cos(y @ m.matrix)), -1)),
    "a gate by halves": _gated,
    "a gated linear unit": lambda m, y: functional.glu(m.wide(y), dim=-1),
    "columns": _columns,
    "columns that are unbound": _unbound,
    "halves": _halves,
    "slices by the size of a sample": lambda m, y: torch.cat([y[:, y.shape[1] // 2 :], -y[:, : y.shape[1] // 2]], 1),
    "changes in place": _in_place,
    "a softmax over features": lambda m, y: m.second(functional.softmax(m.first(y), dim=-1)),
    "the mean of features": lambda m, y: m.first(y) - y.mean(dim=-1, keepdim=True),
    "a norm of features": lambda m, y: m.first(y) / (1 + y.norm(dim=-1, keepdim=True)),
    "a variance of features": lambda m, y: y / (1 + y.var(dim=-1, keepdim=True)),
    "a sum of features": lambda m, y: -y * (y * y).sum(1, keepdim=True),
    "directions": lambda m, y: functional.normalize(m.first(y), dim=-1),
    "a layer norm as a function": lambda m, y: functional.layer_norm(m.first(y), (4,)),
    "neighbours on a circle": lambda m, y: torch.roll(y, 1, dims=-1) - y + y.flip(1),
    "an order of tokens": lambda m, y: m.first(y).unflatten(1, (2, 2)).transpose(1, 2).flatten(1),
    "outer products": lambda m, y: (m.first(y).unsqueeze(1) * y.unsqueeze(2)).sum(1),
    "a product by einsum": lambda m, y: torch.einsum("bi,ij->bj", y, m.matrix),
    "a matrix made of weights": lambda m, y: y @ (m.matrix - m.matrix.T) - functional.softplus(m.gain) * y,
    "a choice for each entry": lambda m, y: torch.where(y > 0, m.first(y), 0.1 * y).clamp(-2, 2),
    "attention by products": _tokens,
    "attention as a function": _attention,
    "the root of a length": lambda m, y: m.first(y) / math.sqrt(y.size(-1)),
    "a dimension called axis": lambda m, y: y - y.mean(axis=1, keepdim=True),
    "the largest feature": lambda m, y: y.clip(-1, 1) - y.max(1, keepdim=True).values,
    "a matrix product": lambda m, y: torch.mm(y, m.matrix),
    "a weight of the type of the state": lambda m, y: m.gain.to(y) * y + m.gain.type_as(y),
    "a copy that is not changed": lambda m, y: torch.cat([y[:, :2].contiguous(), y[:, 2:]], 1) + m.first(y),
}
TOGETHER: dict[str, Callable[[Own, Tensor], Tensor]] = {
    "the batch that is joined": lambda m, y: torch.cat([y[1:], y[:1]]),
    "the batch that is stacked": lambda m, y: torch.stack([y, y])[0],
    "a sum over all": lambda m, y: y * y.sum(),
    "a mean by a negative dimension": lambda m, y: y - y.mean(-2, keepdim=True),
    "a softmax by a negative dimension": lambda m, y: functional.softmax(y, -2),
    "a cumulative sum": lambda m, y: y.cumsum(0),
    "samples that are rolled": lambda m, y: y.roll(1),
    "samples that are flipped, named second": lambda m, y: y.flip(1, 0),
    "a transpose": lambda m, y: y.transpose(0, 1),
    "another transpose": lambda m, y: y.mT,
    "a permutation": lambda m, y: y.permute(-1, 0),
    "another shape": lambda m, y: y.reshape(4, -1).cumsum(1).reshape(-1, 4),
    "a row for all": lambda m, y: y + y[-1, ...],
    "a row behind an ellipsis": lambda m, y: y + y[..., 0, :],
    "a new first dimension": lambda m, y: y[None].mean(1),
    "differences of samples": lambda m, y: (y.unsqueeze(0) - y.unsqueeze(1)).sum(0),
    "a column beside all": lambda m, y: y[:, 0] * y,
    "a column beside weights": lambda m, y: torch.stack([y[:, 0] + m.table[:, 0]] * 4, 1),
    "the Gram matrix by einsum": lambda m, y: torch.einsum("bi,ci->bc", y, y) @ y,
    "a sum by einsum": lambda m, y: y * torch.einsum("bi->i", y),
    "the size of the batch": lambda m, y: y / y.shape[0],
    "samples in order": lambda m, y: y[y[:, 0].argsort()],
    "indices of samples": lambda m, y: torch.where(y > 0)[0][:1] + y,
    "a product from the left": lambda m, y: m.matrix @ y,
    "noise": lambda m, y: y + torch.randn(4),
    "dropout as a function": lambda m, y: functional.dropout(y, 0.5, m.training),
    "a weight that is changed": lambda m, y: m.gain.mul_(1.0) * y,
    "a weight that is doubled": _weight_changed,
    "a weight with an activation in place": lambda m, y: functional.relu(m.gain, inplace=True) * y,
    "a bias for each sample": lambda m, y: functional.linear(y, m.matrix, m.table),
    "a vector as a matrix": lambda m, y: y * functional.linear(y, m.vector),
    "weights for each sample by a length": lambda m, y: y + y.shape[1] * m.table,
    "weights for each sample by a power": lambda m, y: y + y.size(-1) ** -0.5 * m.table,
    "weights for each sample of the type of the state": lambda m, y: y + m.table.to(y),
    "a weight as rows": lambda m, y: torch.softmax(
        y.reshape(y.shape[0], -1) + m.table.to(y).view(y.shape[0], -1), 1
    ).reshape(y.shape),
    "a dimension that is added in place": _unsqueezed_in_place,
    "a copy that is changed": _copy_changed,
    "a view that is changed": _view_changed,
    "an output that is given": _written(torch.mul, 2),
    "a cumulative sum that is written": _written(torch.cumsum, 1),
    "as many steps as samples": lambda m, y: torch.roll(y, y.shape[0], 1),
    "as many parts as samples": lambda m, y: y * y.chunk(y.shape[0], 1)[0].sum(1, keepdim=True),
    "as many columns as samples": lambda m, y: y * torch.stack(y.unbind(1)[: y.shape[0]], 1).sum(1, keepdim=True),
    "a power of the number of samples": lambda m, y: functional.normalize(y, p=y.shape[0], dim=1),
    "a variance by the number of samples": lambda m, y: y * y.var(1, correction=y.shape[0], keepdim=True),
    "a norm by the number of samples": lambda m, y: y * y.norm(p=y.shape[0], dim=1, keepdim=True),
    "samples as channels": lambda m, y: m.convolution(y.unflatten(1, (2, 2))).flatten(1),
}


@pytest.mark.parametrize("name", ALONE)
def test_proved(name: str) -> None:
    module = Own(ALONE[name]).double()
    field = rs.Autonomous(module)
    assert field.rowwise
    assert rs.Autonomous(module.eval()).rowwise
    y = torch.randn(6, 4, generator=torch.Generator().manual_seed(shifted(0)), dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(torch.cat([module(row) for row in y.split(1)]), module(y))


@pytest.mark.parametrize("name", TOGETHER)
def test_not_proved(name: str) -> None:
    module = Own(TOGETHER[name])
    before = copy.deepcopy(module.state_dict())
    assert not rs.Autonomous(module).rowwise
    assert not rs.Autonomous(module.eval()).rowwise
    assert all(torch.equal(value, before[key]) for key, value in module.state_dict().items())


@pytest.mark.parametrize("name", ALONE)
def test_layers_are_those_of_a_field_that_is_not_proved(name: str) -> None:
    module = Own(ALONE[name]).double()
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(shifted(1)), dtype=torch.float64)
    assert_layers_agree(module, x, 3, 0.15)


def test_settings_of_layers_are_those_of_now() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Softmax(dim=1), nn.Linear(4, 4))
    field = rs.Autonomous(module)
    assert field.rowwise
    module[1].dim = 0
    assert not field.rowwise
    module[1].dim = 1
    assert field.rowwise
    module.append(nn.Softmax(dim=0))
    assert not field.rowwise


def test_images() -> None:
    class Periodic(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution = nn.Conv2d(3, 3, 3)
            self.scale = nn.Parameter(torch.ones(1, 3, 1, 1))

        def forward(self, y: Tensor) -> Tensor:
            h = self.convolution(functional.pad(y, (1, 1, 1, 1), mode="circular"))
            return self.scale * torch.tanh(h) - h.mean((2, 3), keepdim=True) * torch.softmax(h, dim=1)

    assert rs.Autonomous(Periodic()).rowwise


def test_dropout_that_drops_nothing() -> None:
    assert rs.Autonomous(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.0))).rowwise
