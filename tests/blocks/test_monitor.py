"""The monitor of solves: what it counts, and that it leaves nothing behind."""

import dataclasses

import pytest
import torch
from torch import nn

import resolvent as rs
from resolvent.blocks import Monitor


class _Square(nn.Module):
    """w = b + w^2 has no solution for b > 1/4."""

    def forward(self, w):
        return w * w


class _Cliff(nn.Module):
    """So steep that Newton's method for several layers at once goes astray."""

    def forward(self, w):
        return -50 * torch.atan(20 * (w - 1))


def model() -> nn.Sequential:
    return nn.Sequential(
        rs.ThetaBlock(rs.fields.MLP(2, 4, 1), 1.0, 3), nn.Tanh(), rs.ThetaBlock(rs.fields.MLP(2, 4, 1))
    )


def test_both_directions_of_every_block_are_recorded():
    network = model()
    before = [network[0].options, network[2].options]
    with Monitor(network) as monitor:
        network(torch.randn(7, 2)).sum().backward()
    assert set(monitor.records) == {(name, way) for name in ("0", "2") for way in ("forward", "backward")}
    assert all(record.samples > 0 and record.samples % 7 == 0 for record in monitor.records.values())
    assert 1 <= monitor.records["0", "forward"].steps <= monitor.records["0", "forward"].max_steps
    assert 0 < monitor.records["0", "forward"].residual < 1e-4
    assert all(record.failed == record.fallbacks == 0 for record in monitor.records.values())
    assert [network[0].options, network[2].options] == before


def test_nothing_is_recorded_outside():
    network, x = model(), torch.randn(4, 2)
    monitor = Monitor(network)
    network(x)
    with monitor:
        pass
    network(x)
    assert monitor.records == {}


def test_masked_samples_are_counted():
    block = rs.ThetaBlock(rs.Autonomous(_Square(), rowwise=True), 1.0, 1, 1.0, on_failure="mask")
    with Monitor(block) as monitor:
        block(torch.tensor([[0.0], [0.1], [3.0]]))
    record = monitor.records["", "forward"]
    assert (record.failed, record.samples, block.options.on_failure.failed) == (1, 3, 1)
    assert record.fallbacks == 1


def test_samples_that_a_group_of_layers_does_not_solve_count_where_they_are_solved():
    """They are solved layer by layer then, and have not failed."""
    block = rs.ThetaBlock(rs.Autonomous(_Cliff(), rowwise=True), 1.0, num_steps=10, horizon=10.0)
    x = torch.tensor([[0.5], [30.0]])
    with Monitor(block) as monitor:
        alone = block(x[1:])
    record = monitor.records["", "forward"]
    assert record.samples > 1, "the group was solved at once, so this test shows nothing"
    assert record.failed == 0
    with Monitor(block) as monitor:
        both = block(x)
    assert monitor.records["", "forward"].failed == 0
    torch.testing.assert_close(both[1:], alone)


def test_equilibrium_layers_are_recorded():
    layer = rs.Equilibrium(lambda z, x: torch.tanh(0.5 * z + x))
    with Monitor(nn.Sequential(layer)) as monitor:
        nn.Sequential(layer)(torch.randn(5, 3, requires_grad=True)).sum().backward()
    assert [record.samples for record in monitor.records.values()] == [5, 5]
    assert set(monitor.records) == {("0", "forward"), ("0", "backward")}


def test_log_and_table():
    network = model()
    with Monitor(network) as monitor:
        network(torch.randn(7, 2)).sum().backward()
        logged = monitor.log()
        assert logged["solver/2/backward/samples"] == monitor.records["2", "backward"].samples
        assert "0/forward/steps" in monitor.log(prefix="")
        assert all(isinstance(value, float) for value in logged.values())
        table = str(monitor).splitlines()
        assert len(table) == 1 + 4
        assert "fallbacks" in table[0]
        monitor.reset()
        assert monitor.log() == {}
        network(torch.randn(7, 2))
    assert set(monitor.records) == {("0", "forward"), ("2", "forward")}


def test_an_observer_of_the_user_is_called_too_and_other_options_keep_the_monitor():
    block, seen = rs.ThetaBlock(rs.fields.MLP(2, 4, 1), num_steps=1), []
    block.options = dataclasses.replace(block.options, observe=seen.append)
    with Monitor(block) as monitor, rs.blocks.solved_with(block, solver=rs.Newton()):
        block(torch.randn(3, 2))
    assert monitor.records["", "forward"].samples == 3
    assert len(seen) == 1


def test_options_are_restored_after_an_error():
    block = rs.ThetaBlock(rs.Autonomous(_Square(), rowwise=True), 1.0, 1, 1.0)
    before = block.options
    with pytest.raises(rs.ConvergenceError), Monitor(block):
        block(torch.tensor([[3.0]]))
    assert block.options is before


def test_wrong_use():
    with pytest.raises(ValueError, match="contains neither a block"):
        Monitor(nn.Linear(2, 2))
    with Monitor(model()) as monitor, pytest.raises(ValueError, match="open already"):
        monitor.__enter__()


def test_the_quick_attempt_of_the_default_is_no_fallback() -> None:
    layer = rs.ThetaBlock(lambda t, y: -y + 0.5 * torch.tanh(y), 1.0, num_steps=1, horizon=2.0)
    with Monitor(layer) as monitor:
        layer(torch.randn(3, 20, requires_grad=True)).sum().backward()
    for record in monitor.records.values():
        assert (record.samples, record.fallbacks, record.failed) == (3, 0, 0)
    slow = rs.resolve(lambda w: w + 0.01 * torch.tanh(w), torch.randn(3, 4), 0.9)
    assert slow.quick
    assert slow.solver_index.tolist() == [1, 1, 1]
