"""The data of the experiments against scipy and against the paper."""

import pytest
import torch
from scipy.integrate import solve_ivp

from resolvent_lab import problems
from resolvent_lab.experiments.catalogue import experiments
from resolvent_lab.experiments.lotka_volterra import model as lotka_volterra
from resolvent_lab.experiments.regression import model as regression
from resolvent_lab.experiments.stiff import model as stiff


def test_orbits_agree_with_scipy():
    orbits = lotka_volterra.orbits()
    assert orbits.shape == (51, 5, 2)
    for k, start in enumerate(lotka_volterra.STARTS):
        f = lambda t, z: problems.predator_and_prey(t, torch.from_numpy(z)).numpy()  # noqa: E731
        times = torch.linspace(0, 10, 51).numpy()
        solution = solve_ivp(f, (0, 10), [1.0, start], method="DOP853", t_eval=times, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(orbits[:, k], torch.from_numpy(solution.y.T), rtol=0, atol=1e-8)


@pytest.mark.parametrize(("t0", "z0"), [(0.0, 0.0), (1.37, -0.4)])
def test_the_stiff_solution_agrees_with_scipy_also_where_the_forcing_is_frozen(t0, z0):
    f = lambda t, z: -20 * (z - torch.tensor(t).clamp(max=2.0).cos().item())  # noqa: E731
    times = torch.linspace(t0, t0 + 2, 41)
    solution = solve_ivp(f, (t0, t0 + 2), [z0], "Radau", t_eval=times.numpy(), rtol=1e-10, atol=1e-12, max_step=0.01)
    exact = problems.stiff_solution(times, torch.tensor(t0), torch.tensor(z0))
    torch.testing.assert_close(exact, torch.from_numpy(solution.y[0]), rtol=0, atol=1e-7)


def test_the_learned_predator_prey_field_is_integrated_as_accurately_as_by_scipy(monkeypatch):
    monkeypatch.setattr(lotka_volterra, "FAR", 40.0)
    network = lotka_volterra.LotkaVolterra(lotka_volterra.LotkaVolterraConfig(theta=0.5, seed=0, init="xavier"))
    z0 = lotka_volterra.orbits()[0]

    @torch.no_grad()
    def slopes(t, z):
        return network.block.field(t, torch.from_numpy(z).reshape(5, 2)).flatten().numpy()

    times = torch.linspace(0, 40, 201).numpy()
    solution = solve_ivp(slopes, (0, 40), z0.flatten().numpy(), "RK45", t_eval=times, rtol=1e-8, atol=1e-8)
    expected = torch.from_numpy(solution.y.T.copy()).reshape(201, 5, 2)
    assert (expected - z0).abs().max() > 1  # it goes somewhere, through the kinks of the field
    torch.testing.assert_close(network.continuous(z0), expected, rtol=1e-3, atol=1e-4)


def test_stiff_data_starts_five_times_in_each_cell_and_first_at_zero():
    batches = stiff.data(stiff.StiffConfig(theta=0.5, points=10, seed=0)).batches
    assert len(batches) == 20
    for cell, (starts, states) in enumerate(batches):
        assert starts.shape == (5,)
        assert states.shape == (21, 5)
        assert bool(((starts >= 0.1 * cell) & (starts < 0.1 * (cell + 1))).all())
    assert batches[0][0][0] == batches[0][1][0, 0] == 0


@pytest.mark.parametrize(("theta", "slope"), [(0.0, -15.0), (0.5, -15.23), (1.0, -25.0)])
def test_the_predicted_slope_is_the_nearest_one_allowed(theta, slope):
    assert stiff.predicted_slope(theta) == pytest.approx(slope, abs=0.01)


@pytest.mark.parametrize(
    ("experiment", "parameters"), [("regression", 380), ("stiff", 20 * 53), ("lotka-volterra", 1780)]
)
def test_networks_have_the_paper_s_number_of_parameters_for_every_theta(experiment, parameters):
    parts = experiments()[experiment]
    for config in parts.configs(True, None, 1):
        assert sum(p.numel() for p in parts.network(config).parameters()) == parameters


def test_full_sweeps_are_those_of_the_paper():
    sizes = {name: len(parts.configs(False, None, 3)) for name, parts in experiments().items()}
    assert sizes == {"regression": 75, "stiff": 27, "lotka-volterra": 9, "robertson": 3, "van-der-pol": 15, "mnist": 33}


def test_sign_flips_count_turning_points():
    assert regression.sign_flips(torch.tensor([[0.0, 0.0], [1.0, 1.0], [0.0, 2.0], [1.0, 3.0]])) == 1.0


@pytest.mark.parametrize(("theta", "low", "high"), [(0.0, -1.5, -0.5), (0.5, -0.112, 0.143), (1.0, 0.285, 0.4)])
def test_a_stiff_layer_multiplies_differences_by_what_its_slopes_allow(theta, low, high):
    block = stiff.Stiff(stiff.StiffConfig(theta=theta, points=10, seed=0, always=False)).block
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.mul_(5.0)  # well into the normalisation
        block.eval()  # which measures it anew
    z = torch.linspace(-0.5, 1.5, 40)[:, None]
    differences = block.trajectory(z).states[:2].diff(dim=1)
    factors = differences[1] / differences[0]
    assert low - 1e-3 < factors.min() < factors.max() < high + 1e-3
