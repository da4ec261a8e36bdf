"""Fields fitted to segments of trajectories: the least squares, the stages, and what the two networks can represent."""

import math

import pytest
import torch

import resolvent as rs
from resolvent_lab.experiments.least_squares import LevenbergMarquardt
from resolvent_lab.experiments.robertson import model as robertson
from resolvent_lab.experiments.segments import FittedField, Segments, segments_of
from resolvent_lab.experiments.van_der_pol import model as van_der_pol
from seeding import shifted


def test_a_linear_fit_takes_one_step_without_damping():
    torch.manual_seed(shifted(0))
    A, b, p = torch.randn(8, 3), torch.randn(8), torch.zeros(3, requires_grad=True)
    for batched in (True, False):
        with torch.no_grad():
            p.zero_()
        found = LevenbergMarquardt([p], batched, damping=0.0).step(lambda: A @ p - b)
        expected = torch.linalg.lstsq(A, b).solution
        torch.testing.assert_close(p.detach(), expected)
        assert found == pytest.approx((A @ expected - b).square().mean().item())


def test_a_curved_fit_finds_its_parameters():
    t, (rate, size) = torch.linspace(0, 2, 9), (torch.tensor(p, requires_grad=True) for p in (0.2, 1.0))
    method = LevenbergMarquardt([rate, size])
    for _ in range(20):
        loss = method.step(lambda: size * torch.exp(-rate * t) - 3 * torch.exp(-1.5 * t))
    assert loss < 1e-20
    assert [rate.item(), size.item()] == pytest.approx([1.5, 3.0])


def test_a_step_into_fields_that_cannot_be_integrated_is_shortened():
    p = torch.tensor([0.0], requires_grad=True)

    def residuals():
        if p.item() > 1.5:
            raise rs.ConvergenceError("too stiff", None)
        return p - 2.0

    first = LevenbergMarquardt([p], damping=0.0)
    assert first.step(residuals) == 4.0  # without damping the step goes to 2, and more damping is none
    assert p.item() == 0.0
    second = LevenbergMarquardt([p], damping=0.1)
    assert second.step(residuals) < 4.0
    assert 0.0 < p.item() <= 1.5


def test_a_fit_that_begins_where_nothing_can_be_integrated_stays_there():
    p = torch.zeros(1, requires_grad=True)

    def residuals():
        raise rs.ConvergenceError("too stiff", None)

    assert LevenbergMarquardt([p]).step(residuals) == math.inf
    assert p.item() == 0.0


def test_segments_join_neighbouring_points_and_longer_ones_come_later():
    times = torch.tensor([[0.0, 0.0], [1.0, 2.0], [11.0, 102.0]])
    states = torch.arange(6.0).reshape(3, 2, 1)
    segments = segments_of(times, states)
    assert segments.lengths.tolist() == [1.0, 2.0, 10.0, 100.0]
    assert segments.start.flatten().tolist() == [0.0, 1.0, 2.0, 3.0]
    assert segments.end.flatten().tolist() == [2.0, 3.0, 4.0, 5.0]
    config = robertson.RobertsonConfig(seed=0, stages=2, stage_epochs=3)
    assert [config.longest(epoch, segments.lengths) for epoch in (0, 2, 3, 99)] == pytest.approx(
        [10.0, 10.0, 100.0, 100.0]
    )
    assert len(segments.up_to(10.0).start) == 3
    at_once = robertson.RobertsonConfig(seed=0, stages=0)
    assert at_once.longest(0, segments.lengths) == 100.0


def test_the_last_epochs_penalise_the_hidden_layer():
    config = robertson.RobertsonConfig(seed=0, epochs=10, smoothing=6)
    assert [config.ridge(epoch) for epoch in range(10)] == [0.0] * 4 + [0.1, 0.1, 0.01, 0.01, 0.001, 0.001]
    assert robertson.RobertsonConfig(seed=0, epochs=10, smoothing=0).ridge(9) == 0.0


def test_a_segment_on_the_wrong_branch_does_not_disturb_the_others(monkeypatch):
    errors = torch.tensor([[1e-4, -2e-4], [3.0, 0.0]], dtype=torch.float64)
    segments = segments_of(torch.tensor([[0.0, 0.0], [1.0, 1.0]]), torch.zeros(2, 2, 2))
    for bounded, expected in ((False, 3.0), (True, 0.1)):
        network = van_der_pol.VanDerPol(van_der_pol.VanDerPolConfig(method="adaptive", seed=0, bounded=bounded))
        monkeypatch.setattr(network, "residuals", lambda _: errors.flatten())
        near, far = network.objective(segments).reshape(2, 2)
        torch.testing.assert_close(near, errors[0], rtol=1e-5, atol=0)
        assert far[0].item() == pytest.approx(expected, rel=1e-3)


class Pulled(FittedField):
    """Fits a number to 1. A penalty pulls it to 3 in its last epochs."""

    current_epoch = 0

    def __init__(self, config):
        super().__init__(config, torch.nn.Linear(1, 1, bias=False))
        self.losses = []

    def prepare(self, segments):
        pass

    def residuals(self, segments):
        return self.field.weight[0] - 1

    def objective(self, segments):
        pull = self.config.ridge(self.current_epoch)
        return self.residuals(segments) if pull == 0 else self.field.weight[0] - 3

    def measure(self, batches):
        return {}

    def record(self, values):
        self.losses.append(values["loss"].item())


@pytest.mark.parametrize("smoothing", [0, 6])
def test_a_field_that_smoothing_spoils_is_not_kept(smoothing):
    model = Pulled(robertson.RobertsonConfig(seed=0, epochs=16, stages=0, smoothing=smoothing))
    states = torch.zeros(1, 1, dtype=torch.float64)
    segments = Segments(states, torch.tensor([[0.0], [1.0]]), states)
    for model.current_epoch in range(16):
        model.training_step(segments, 0)
    assert (max(model.losses[10:]) > 1) == (smoothing > 0)
    assert model.losses[-1] == model.residuals(segments).square().item() < 1e-12


@pytest.mark.slow
def test_there_are_fifty_points_and_the_held_out_states_are_others():
    config = robertson.RobertsonConfig(seed=0)
    torch.manual_seed(shifted(0))
    (segments,) = robertson.data(config).batches
    assert segments.end.shape == (50, 3)
    torch.testing.assert_close(segments.end.sum(1), segments.start.sum(1), rtol=1e-8, atol=0)  # mass
    assert torch.cdist(robertson.held_out(config)[0], segments.start[:5]).min() > 0


def transfers(scale):
    field = robertson.Transfers(4).double()
    field.scale.copy_(scale)
    return field


def test_transfers_keep_the_mass_and_no_species_becomes_negative():
    torch.manual_seed(shifted(0))
    field, y = transfers(torch.tensor([1.0, 3e-5, 1.0])), torch.rand(9, 3, dtype=torch.float64)
    y[torch.arange(9), torch.arange(9) % 3] = 0.0
    slopes = field(0.0, y)
    assert slopes.sum(1).abs().max() < 1e-12 * slopes.abs().max()
    assert (slopes[y == 0] > 0).all()


def test_the_bypass_alone_can_be_robertson_s_reaction():
    a, b, c = scale = torch.tensor([1.0, 3e-5, 0.8], dtype=torch.float64)
    field = transfers(scale)
    with torch.no_grad():
        for parameter in field.parameters():
            parameter.zero_()
        field.straight.bias.fill_(-80.0)
        field.straight.bias[[0, 2, 3]] = torch.stack([0.04 * a, 1e4 * b * c, 3e7 * b * b]).log()
        field.straight.weight[2, 2] = field.straight.weight[3, 1] = 2.0  # the logarithms are halved
    torch.manual_seed(shifted(0))
    y = scale * (0.5 + 0.5 * torch.rand(9, 3, dtype=torch.float64))
    torch.testing.assert_close(field(0.0, y), robertson.truth(0.0, y), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_the_period_of_the_circuit_is_that_of_theory():
    """(3 - 2 ln 2) mu + 7.014 mu^(-1/3) - ... (Hairer & Wanner, section IV.10); the times are 0.2 apart."""
    mu = 100.0
    expected = (3 - 2 * math.log(2)) * mu + 7.014 * mu ** (-1 / 3) - 2 * math.log(mu) / (3 * mu)
    assert van_der_pol.period(van_der_pol.Circuit(mu), mu) == pytest.approx(expected, abs=0.3)


@pytest.mark.parametrize("method", [van_der_pol.ADAPTIVE, *van_der_pol.ONE_STEP])
def test_short_segments_are_fitted_by_every_method(method):
    """What fails for long segments is not the method's own training: for short ones all are accurate."""
    torch.manual_seed(shifted(0))
    config = van_der_pol.VanDerPolConfig(method=method, mu=100.0, seed=0, width=6)
    y0 = van_der_pol.starts(6)
    times = torch.tensor([0.0, 3e-4, 1e-3], dtype=torch.float64)
    states = rs.odeint(van_der_pol.Circuit(config.mu), y0, times, rs.schemes.tableaux.RADAU5, rtol=1e-7).states
    segments = segments_of(times[:, None].expand(-1, 6), states)
    network = van_der_pol.VanDerPol(config)
    network.prepare(segments)
    fit = LevenbergMarquardt(network.field.parameters(), network.batched)
    first = network.residuals(segments).square().mean().item()
    assert [fit.step(lambda: network.residuals(segments)) for _ in range(8)][-1] < 0.05 * first
