"""Samples that contract, solved by kernels on a GPU: the same answers as on the CPU, and few waits for the device."""

import warnings

import pytest
import torch
from torch import Tensor

import resolvent as rs
from resolvent.equation import fused

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS:UserWarning"),
]


class Field(torch.nn.Module):
    """F(w)_i = c w_i + steepness sin(w_{i+1} + i mod 7) p_i: rounds the same way for any batch."""

    rowwise = True

    def __init__(self, size: int, steepness: float = 1.0, c: float | None = None) -> None:
        super().__init__()
        self.steepness, self.linear_part = steepness, c
        self.weight = torch.nn.Parameter(torch.ones(size, dtype=torch.float32))

    def forward(self, w: Tensor) -> Tensor:
        phases = torch.arange(w.shape[1], dtype=w.dtype, device=w.device) % 7
        image = self.steepness * torch.sin(w.roll(1, 1) + phases) * self.weight
        return image if self.linear_part is None else self.linear_part * w + image


def states(batch: int, size: int) -> Tensor:
    return torch.randn(batch, size, dtype=torch.float32)


def solved(field: Field, b: Tensor) -> tuple[rs.Solution, rs.Solution, list[Tensor]]:
    """The solution, that of the backward pass, and the value with its gradients."""
    linear: list[rs.Solution] = []
    b = b.clone().requires_grad_()
    solution = rs.resolve(field, b, 0.7, adjoint=rs.ImplicitAdjoint(callback=linear.append))
    gradients = torch.autograd.grad(solution.value.square().sum(), [b, field.weight])
    return solution, linear[0], [solution.value.detach(), *gradients]


@pytest.mark.parametrize("c", [None, -3.0])
@pytest.mark.parametrize("size", [40, 1000, 20_000])
def test_it_agrees_with_the_cpu(size: int, c: float | None) -> None:
    field, b = Field(size, c=c), states(6, size)
    b[1] *= 10
    b[2] *= 1e-2
    b[3] = 0
    cpu = solved(field, b)
    gpu = solved(field.cuda(), b.cuda())
    for (here, there), tolerance in zip(zip(cpu[2], gpu[2], strict=True), (3e-5, 3e-5, 1e-4), strict=True):
        error = (here - there.cpu()).abs().amax() / here.abs().amax()
        assert error < tolerance
    for one, other in zip(cpu[:2], gpu[:2], strict=True):
        assert one.all_converged
        assert other.all_converged
        assert int(other.steps.max()) <= int(one.steps.max()) + 1
    assert gpu[0].evaluations == gpu[0].steps.max() + 1


def test_a_sample_does_not_depend_on_the_others() -> None:
    field, b = Field(5000, 1.2).cuda(), states(32, 5000).cuda()
    b[1] *= 10
    whole, backward, (value, gradient, _) = solved(field, b)
    for rows in (slice(0, 1), slice(1, 2), slice(10, 13)):
        alone, own, (own_value, own_gradient, _) = solved(field, b[rows])
        assert torch.equal(own_value, value[rows])
        assert torch.equal(own_gradient, gradient[rows])
        assert torch.equal(alone.residual, whole.residual[rows])
        assert torch.equal(alone.steps, whole.steps[rows])
        assert torch.equal(own.steps, backward.steps[rows])


def test_samples_that_do_not_contract_go_on() -> None:
    field, b = Field(200, 30.0).cuda(), states(8, 200).cuda()
    tau = torch.tensor([0.01] * 4 + [0.1] * 4, dtype=torch.float32, device="cuda")
    solution = rs.resolve(field, b, tau, on_failure="ignore")
    assert len(solution.solvers) > 1
    assert (solution.solver_index[:4] == 0).all()
    assert (solution.solver_index[4:] > 0).any()
    residual = (b + tau[:, None] * field(solution.value) - solution.value).square().mean(1).sqrt()
    torch.testing.assert_close(residual, solution.residual, rtol=0.1, atol=1e-6)


def test_statuses() -> None:
    field, b = Field(100, 1e30).cuda(), states(4, 100).cuda()
    solution = rs.resolve(field, b, 1e10, on_failure="ignore")
    assert not solution.converged.any()
    assert [rs.Status(int(code)).name for code in solution.status] == ["NON_FINITE"] * 4


def test_few_waits() -> None:
    """One for each step, and one each before a backward solve and for its end."""
    field, b = Field(2000, c=-1.0).cuda(), states(8, 2000).cuda()
    solved(field, b)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            solution, backward, _ = solved(field, b)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    waits = sum("synchroniz" in str(w.message) for w in caught)
    assert waits <= int(solution.steps.max()) + int(backward.steps.max()) + 2


def test_small_gradients_are_solved_for() -> None:
    field, b = Field(300).cuda(), states(4, 300).cuda().requires_grad_()
    value = rs.resolve(field, b, 0.7).value.sum()
    one, other = (
        torch.autograd.grad(value, b, torch.tensor(s, device="cuda").float(), retain_graph=True)[0].double() / s
        for s in (1.0, 1e-30)
    )
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_a_network_in_training() -> None:
    """As on the CPU, in eager mode, under autocast and in inference mode."""
    network = rs.models.implicit_resnet18(0.5, 4, input_shape=(1, 8, 8), stopping=rs.Stopping(rtol=1e-6)).float()
    images = torch.rand(6, 1, 8, 8, dtype=torch.float32)
    gradients = []
    for device in ("cpu", "cuda"):
        network, images = network.to(device), images.to(device)
        loss = network(images).square().sum()
        gradients.append([g.cpu() for g in torch.autograd.grad(loss, list(network.parameters()))])
    for cpu, gpu in zip(*gradients, strict=True):
        assert (cpu - gpu).norm() <= 1e-3 * cpu.norm() + 1e-6
    with torch.autocast("cuda", dtype=torch.bfloat16):
        network(images).float().square().sum().backward()
    assert all(weight.grad.isfinite().all() for weight in network.parameters())
    with torch.inference_mode():
        assert network(images).isfinite().all()


def test_without_a_compiler_it_goes_on_as_before(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kernels = pytest.importorskip("resolvent.equation.kernels")
    fused.kernels_run_on.cache_clear()

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("Failed to find C compiler.")

    monkeypatch.setattr(kernels.finish, "run", fail)
    try:
        solution, *_ = solved(Field(300).cuda(), states(4, 300).cuda())
        solved(Field(300).cuda(), states(4, 300).cuda())
    finally:
        fused.kernels_run_on.cache_clear()
    assert solution.all_converged
    assert caplog.text.count("C compiler") == 1


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_on_another_device_than_the_current_one() -> None:
    field, b = Field(300).to("cuda:1"), states(4, 300).to("cuda:1")
    solution, *_ = solved(field, b)
    assert solution.value.device == b.device
