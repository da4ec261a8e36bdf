"""Schemes that treat two halves of the state apart: Verlet, leapfrog, RevNet, partitioned Runge-Kutta."""

import pytest
import torch
from torch import Tensor, nn

import resolvent as rs
from resolvent import blocks, fields, schemes
from resolvent.schemes import Carry, Interval, PartitionedRungeKutta, RungeKutta, Symplectic, Theta, tableaux
from schemes.catalogue import SHARP, Manufactured, Oscillator, run, step_matrix


@pytest.mark.parametrize("h_omega", [0.5, 1.9, 2.1])
def test_verlet_matrix(h_omega: float) -> None:
    """lambda^2 - (2 - h^2 omega^2) lambda + 1, of modulus one up to h omega = 2."""
    field = Oscillator(50.0)
    for scheme in (schemes.VERLET, schemes.LEAPFROG):
        matrix = step_matrix(scheme, field, h_omega / 50.0, 2)
        assert matrix.trace().item() == pytest.approx(2 - h_omega**2, abs=1e-12)
        assert torch.linalg.det(matrix).item() == pytest.approx(1.0, abs=1e-12)
        radius = torch.linalg.eigvals(matrix).abs().max().item()
        assert radius == pytest.approx(1.0, abs=1e-10) if h_omega <= 2 else radius > 1.3


def test_verlet_is_the_formula_of_the_paper() -> None:
    omega, h = 3.0, 0.1
    z, y = torch.randn(5, 1), torch.randn(5, 1)
    half = y - h * omega**2 / 2 * z
    z1 = z + h * half
    expected = torch.cat((z1, half - h * omega**2 / 2 * z1), dim=1)
    got = schemes.VERLET.step(Interval(Oscillator(omega), 0.0, h), Carry((torch.cat((z, y), dim=1),))).state
    torch.testing.assert_close(got, expected, atol=1e-14, rtol=0)


def test_leapfrog_network_is_the_recursion_of_verlet_positions() -> None:
    """q_{n+1} - 2 q_n + q_{n-1} = h^2 force(q_n), the layer of Chang et al."""

    class Second(Manufactured):
        def velocity(self, t: float | Tensor, p: Tensor) -> Tensor:
            return p

        def force(self, t: float | Tensor, q: Tensor) -> Tensor:
            return -torch.sin(q) - q**3

    h, field = 0.2, Second()
    q = run(schemes.VERLET, field, torch.randn(4, 2), h, 10)[:, :, :1]
    torch.testing.assert_close(q[2:] - 2 * q[1:-1] + q[:-2], h**2 * field.force(0.0, q[1:-1]), atol=1e-13, rtol=0)


class Frozen(Manufactured):
    """The manufactured field at one time: nonlinear and autonomous."""

    def velocity(self, t: float | Tensor, p: Tensor) -> Tensor:
        return super().velocity(0.7, p)

    def force(self, t: float | Tensor, q: Tensor) -> Tensor:
        return super().force(0.7, q)


TABLES = {
    "forward Euler": (tableaux.EULER, tableaux.EULER, Theta(0.0)),
    "backward Euler": (tableaux.EULER.inverse, tableaux.EULER.inverse, Theta(1.0)),
    "trapezoid": (tableaux.LOBATTO_IIIA, tableaux.LOBATTO_IIIA, Theta(0.5, "trapezoid")),
    "Verlet": (tableaux.LOBATTO_IIIA, tableaux.LOBATTO_IIIB, schemes.VERLET),
}


@pytest.mark.parametrize("name", TABLES)
def test_partitioned_tables_reproduce_the_four_schemes_of_the_paper(name: str) -> None:
    position, momentum, scheme = TABLES[name]
    pair = PartitionedRungeKutta(position, momentum)
    assert pair.implicit == (name != "forward Euler")
    interval = Interval(Frozen(), 0.0, 0.2, SHARP)
    x = torch.randn(4, 2)
    expected = scheme.step(interval, Carry((x,))).state
    torch.testing.assert_close(pair.step(interval, Carry((x,))).state, expected, atol=1e-12, rtol=0)


def test_revnet_and_its_inverse() -> None:
    """y1 = x1 + V(x2), y2 = x2 + K(y1); x2 = y2 - K(y1), x1 = y1 - V(x2)."""
    V, K = (nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4)) for _ in range(2))
    field = fields.Partitioned(fields.Autonomous(V, rowwise=True), fields.Autonomous(K, rowwise=True))
    block = blocks.Block(field, schemes.REVNET, num_steps=1, horizon=1.0)
    x = torch.randn(6, 8)
    x1, x2 = x.chunk(2, dim=1)
    y = block(x)
    y1 = x1 + V(x2)
    assert torch.equal(y, torch.cat((y1, x2 + K(y1)), dim=1))

    interval = Interval(field, 0.0, 1.0)
    back = schemes.REVNET.inverse.step(interval.reversed(y), Carry((y,))).state
    torch.testing.assert_close(back, x, atol=1e-12, rtol=0)


def test_revnet_on_images_splits_channels() -> None:
    V, K = (nn.Conv2d(2, 2, 3, padding=1) for _ in range(2))
    field = fields.Partitioned(fields.Autonomous(V), fields.Autonomous(K))
    x = torch.randn(3, 4, 5, 5)
    y = blocks.Block(field, schemes.REVNET, num_steps=1)(x)
    assert torch.equal(y[:, :2], x[:, :2] + V(x[:, 2:]))


def test_hamiltonian_field_of_the_library() -> None:
    field = fields.Hamiltonian(nn.Linear(3, 8), nn.Linear(3, 8))
    x = torch.randn(5, 6)
    exact = rs.schemes.RungeKutta(tableaux.RADAU5)
    reference = blocks.Block(field, exact, num_steps=50)(x)
    for scheme in (schemes.VERLET, schemes.LEAPFROG):
        coarse, fine = (blocks.Block(field, scheme, num_steps=n)(x) - reference for n in (20, 40))
        assert (coarse.norm() / fine.norm()).item() == pytest.approx(4.0, abs=0.2)


ENERGY_STEPS = 400


def energies(scheme: object, omega: float = 50.0, h: float = 0.01) -> Tensor:
    field = Oscillator(omega)
    return field.energy(run(scheme, field, torch.tensor([[1.0, 0.5]]), h, ENERGY_STEPS)[:, 0])


def test_energy_grows_under_forward_and_falls_under_backward_euler() -> None:
    rate = 1 + 0.5**2
    # The energy falls by 1e-9 in a hundred steps, and would meet the rounding of the solves in more.
    growth, decay = energies(Theta(0.0))[:101], energies(Theta(1.0))[:101]
    assert (growth.diff() > 0).all()
    assert (decay.diff() < 0).all()
    torch.testing.assert_close(growth[1:] / growth[:-1], torch.full((100,), rate), atol=1e-10, rtol=0)
    torch.testing.assert_close(decay[1:] / decay[:-1], torch.full((100,), 1 / rate), atol=1e-10, rtol=0)


@pytest.mark.parametrize("scheme", [Theta(0.5), Theta(0.5, "trapezoid"), RungeKutta(tableaux.GAUSS4)])
def test_energy_is_constant_under_midpoint_and_trapezoid(scheme: object) -> None:
    energy = energies(scheme)
    torch.testing.assert_close(energy / energy[0], torch.ones_like(energy), atol=1e-10, rtol=0)


@pytest.mark.parametrize("scheme", [schemes.VERLET, schemes.LEAPFROG])
def test_energy_is_bounded_under_verlet(scheme: object) -> None:
    """It oscillates without a drift: the same in the first and the last quarter."""
    energy = energies(scheme)
    ratio = energy / energy[0]
    assert ratio.min() > 0.5
    assert ratio.max() < 2
    assert ratio.max() - ratio.min() > 1e-3
    quarter = ENERGY_STEPS // 4
    assert ratio[-quarter:].max().item() == pytest.approx(ratio[:quarter].max().item(), rel=0.02)
    assert ratio[-quarter:].min().item() == pytest.approx(ratio[:quarter].min().item(), rel=0.02)


def test_needs_a_field_with_halves() -> None:
    interval = Interval(lambda t, y: y, 0.0, 0.1)
    with pytest.raises(
        ValueError, match=r"each moves by the other alone, such as rs.fields.Hamiltonian.* got function"
    ):
        schemes.VERLET.step(interval, Carry((torch.ones(1, 2),)))
    with pytest.raises(ValueError, match="states of two halves"):
        PartitionedRungeKutta(tableaux.EULER, tableaux.EULER).step(interval, Carry((torch.ones(1, 2),)))
    with pytest.raises(ValueError, match="two equal halves, got 3"):
        fields.Partitioned(fields.Autonomous(nn.Identity()), fields.Autonomous(nn.Identity())).split(torch.ones(1, 3))


def test_refuses_tables_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="come in pairs, got 2 and 1"):
        Symplectic((0.5, 0.5), (1.0,))
    with pytest.raises(ValueError, match=r"kicks must sum to 1 .* got 0.5"):
        Symplectic((1.0,), (0.5,))
    with pytest.raises(ValueError, match="same nodes c"):
        PartitionedRungeKutta(tableaux.EULER, tableaux.GAUSS2)
