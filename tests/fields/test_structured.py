"""Hamiltonian and GradientFlow: the sides of the complex plane which their docstrings promise."""

import pytest
import torch
from torch import Tensor, nn

import resolvent as rs
from resolvent.fields import ConvexGradient, GradientFlow, Hamiltonian

LAYERS = {
    "linear": (lambda: nn.Linear(4, 7), (4,)),
    "narrow": (lambda: nn.Linear(4, 2), (4,)),
    "conv1d": (lambda: nn.Conv1d(2, 3, 3, padding=1), (2, 5)),
    "conv2d": (lambda: nn.Conv2d(1, 3, 3, padding=1), (1, 4, 4)),
    "conv3d": (lambda: nn.Conv3d(1, 2, 2), (1, 3, 3, 2)),
    "strided": (lambda: nn.Conv2d(2, 4, 3, stride=2, groups=2), (2, 6, 4)),
    "circular": (lambda: nn.Conv2d(1, 2, 3, padding="same", padding_mode="circular", dilation=2), (1, 5, 5)),
    "reflect": (lambda: nn.Conv2d(1, 2, 3, padding=1, padding_mode="reflect"), (1, 4, 4)),
    "even": (lambda: nn.Conv1d(1, 2, 4, padding="same", padding_mode="replicate"), (1, 6)),
    "transpose": (lambda: nn.ConvTranspose2d(1, 2, 3, stride=2, output_padding=1, bias=False), (1, 3, 3)),
}
ACTIVATIONS = [nn.Tanh(), nn.ReLU(), nn.Softplus(), nn.Sigmoid(), nn.SELU()]
every_layer = pytest.mark.parametrize("kind", LAYERS)


def layer_of(kind: str, scale: float = 3.0) -> nn.Module:
    layer = LAYERS[kind][0]()
    with torch.no_grad():
        layer.weight.mul_(scale)
    return layer


def gradient_flow(kind: str, activation: nn.Module | None = None, **options: object) -> GradientFlow:
    return GradientFlow(layer_of(kind), activation, input_shape=LAYERS[kind][1], **options)


def hamiltonian(kind: str, activation: nn.Module | None = None, **options: object) -> Hamiltonian:
    return Hamiltonian(layer_of(kind), layer_of(kind), activation, input_shape=LAYERS[kind][1], **options)


def jacobians(field: nn.Module, samples: int = 4) -> Tensor:
    y = torch.randn(samples, *field.shape)
    size = y[0].numel()
    rows = [torch.autograd.functional.jacobian(lambda x: field(0.0, x[None])[0], x) for x in y]
    return torch.stack([row.reshape(size, size) for row in rows])


@every_layer
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
def test_a_gradient_flow_is_symmetric_and_negative_semidefinite(kind, activation):
    field = gradient_flow(kind, activation)
    J = jacobians(field)
    assert torch.allclose(J, J.mT, atol=1e-12)
    eigenvalues = torch.linalg.eigvalsh((J + J.mT) / 2)
    assert eigenvalues.max() <= 1e-12
    assert eigenvalues.min() < -1e-3
    assert eigenvalues.min() >= field.disc().low * (1 + 1e-12)


@every_layer
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
def test_a_hamiltonian_field_has_imaginary_eigenvalues_and_no_divergence(kind, activation):
    field = hamiltonian(kind, activation)
    J = jacobians(field)
    assert torch.equal(J.diagonal(dim1=1, dim2=2).sum(1), torch.zeros(len(J)))
    eigenvalues = torch.linalg.eigvals(J)
    # Nearly defective zero eigenvalues move with the square root of the rounding.
    assert eigenvalues.real.abs().max() <= 1e-6 * eigenvalues.abs().max()
    assert eigenvalues.imag.abs().max() > 1e-2
    assert torch.linalg.matrix_norm(J, 2).max() <= field.lipschitz() * (1 + 1e-12)


@every_layer
def test_the_jacobian_is_an_antisymmetric_matrix_times_a_semidefinite_one(kind):
    J = jacobians(hamiltonian(kind))
    half = J.shape[-1] // 2
    unit = torch.eye(half)
    structure = torch.cat([torch.cat([0 * unit, unit], 1), torch.cat([-unit, 0 * unit], 1)])
    hessian = structure.T @ J
    assert torch.allclose(hessian, hessian.mT, atol=1e-12)
    assert torch.linalg.eigvalsh((hessian + hessian.mT) / 2).min() >= -1e-12


def test_a_hamiltonian_is_conserved_along_the_flow():
    field = Hamiltonian(layer_of("linear"), layer_of("linear"), nn.Tanh())

    def energy(y: Tensor) -> Tensor:
        q, p = field.split(y)
        return sum(torch.cosh(part.layer(x)).log().sum(1) for part, x in ((field.position, q), (field.momentum, p)))

    with torch.no_grad():
        y = torch.randn(5, 8)
        start, h = energy(y), 1e-2
        for _ in range(300):
            k1 = field(0.0, y)
            k2 = field(0.0, y + h / 2 * k1)
            k3 = field(0.0, y + h / 2 * k2)
            y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + field(0.0, y + h * k3))
        assert torch.allclose(energy(y), start, rtol=1e-5)


@pytest.mark.parametrize("kind", ["linear", "conv2d", "reflect"])
def test_two_solutions_of_a_gradient_flow_do_not_move_apart(kind):
    field = gradient_flow(kind)
    u, v = 3 * torch.randn(2, 500, *field.shape)
    du, dF = (u - v).flatten(1), (field(0.0, u) - field(0.0, v)).flatten(1)
    assert (du * dF).sum(1).max() <= 0
    disc = field.disc()
    assert (dF - disc.center * du).norm(dim=1).div(du.norm(dim=1)).max() <= disc.radius * (1 + 1e-12)
    assert disc.high == 0


@pytest.mark.parametrize("kind", ["linear", "conv2d", "circular"])
@pytest.mark.parametrize("make", [gradient_flow, hamiltonian])
def test_a_bound_is_kept(make, kind):
    for activation in (nn.Tanh(), nn.SELU()):
        field = make(kind, activation, bound=0.5)
        assert field.bound == 0.5
        assert field.lipschitz() == pytest.approx(0.5, rel=1e-5)


def test_the_halves_of_a_hamiltonian():
    field = hamiltonian("conv2d")
    assert field.shape == (2, 4, 4)
    y = torch.randn(3, *field.shape)
    q, p = field.split(y)
    assert torch.equal(field.join(q, p), y)
    dq, dp = field.split(field(0.0, y))
    assert torch.equal(dq, field.velocity(0.0, p))
    assert torch.equal(dp, field.force(0.0, q))
    with pytest.raises(ValueError, match="two halves"):
        field.split(torch.randn(1, 3))


@every_layer
def test_the_gradient_is_the_layer_then_its_transpose(kind):
    layer = layer_of(kind)
    shape = LAYERS[kind][1]
    gradient = ConvexGradient(layer, nn.Tanh(), shape, None, None, False, 1)
    y = torch.randn(2, *shape, requires_grad=True)
    (by_autograd,) = torch.autograd.grad(torch.cosh(layer(y)).log().sum(), y)
    assert torch.allclose(gradient(y), by_autograd, atol=1e-12)


@pytest.mark.parametrize("kind", ["linear", "conv1d", pytest.param("circular", marks=pytest.mark.slow)])
def test_weights_get_their_gradients(kind):
    field = gradient_flow(kind, bound=1.0)
    y = torch.randn(2, *field.shape, requires_grad=True)
    names = [name for name, _ in field.named_parameters()]
    state = dict(field.named_buffers())

    def value(y: Tensor, *parameters: Tensor) -> Tensor:
        return torch.func.functional_call(field, {**state, **dict(zip(names, parameters, strict=True))}, (0.0, y))

    assert torch.autograd.gradcheck(value, (y, *(p.detach().requires_grad_() for p in field.parameters())))


@pytest.mark.parametrize("activation", [nn.GELU(), nn.SiLU(), nn.Hardswish()], ids=str)
def test_an_activation_that_decreases_is_refused(activation):
    with pytest.raises(ValueError, match=f"non-decreasing, but the slopes of {type(activation).__name__}"):
        gradient_flow("linear", activation)
    with pytest.raises(ValueError, match="non-decreasing"):
        hamiltonian("linear", activation)


def test_layers_of_different_halves_are_refused():
    with pytest.raises(ValueError, match=r"got \(2,\) and \(3,\)"):
        Hamiltonian(nn.Linear(2, 4), nn.Linear(3, 4))
    with pytest.raises(ValueError, match="give input_shape"):
        GradientFlow(nn.Conv2d(1, 1, 3))


def test_the_linear_part_of_a_gradient_flow_makes_the_fixed_point_iteration_contract():
    """Without it the step is far too long."""
    flow = gradient_flow("conv2d", nn.ReLU(), bound=2.0, always=True)
    assert flow.linear_part == -1.0
    b, tau = torch.randn(3, *flow.shape), 20.0
    stopping = rs.Stopping(rtol=1e-8, max_steps=500)

    def field(w: Tensor) -> Tensor:
        return flow(0.0, w)

    plain = rs.resolve(rs.Rowwise(field), b, tau, solver=rs.Picard(), stopping=stopping, on_failure="ignore")
    split = rs.Rowwise(field, linear_part=flow.linear_part)
    solved = rs.resolve(split, b, tau, solver=rs.Picard(), stopping=stopping)
    assert not plain.converged.any()
    torch.testing.assert_close(solved.value, b + tau * field(solved.value), rtol=1e-6, atol=1e-6)


def test_linear_parts_of_gradient_flows():
    assert gradient_flow("linear").linear_part is None
    assert gradient_flow("linear", linear_part=-3.0).linear_part == -3.0
    assert gradient_flow("linear", bound=1.0, linear_part=-0.25).linear_part == -0.25
    with pytest.raises(ValueError, match=r"got 1\.0"):
        gradient_flow("linear", linear_part=1.0)
