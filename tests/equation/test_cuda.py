"""On a GPU: the same answers as on the CPU, and few waits for the device."""

import copy
import warnings

import pytest
import torch
from torch import Tensor

import resolvent as rs
from manufactured import LINEAR_SOLVERS, PROBLEMS, SOLVERS, Manufactured
from resolvent.extending import Solver

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS:UserWarning"),
]


def on_gpu(F):  # type: ignore[no-untyped-def]
    return type(F)(F.function, *(t.cuda() for t in F.tensors), linear_part=F.linear_part)


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: p.name)
def test_every_solver_agrees_with_the_cpu(problem: Manufactured) -> None:
    case = problem.build(torch.float64)
    for solver in SOLVERS:
        cpu = rs.resolve(case.F, case.b, case.tau, solver=solver, on_failure="ignore")
        gpu = rs.resolve(on_gpu(case.F), case.b.cuda(), case.tau, solver=solver, on_failure="ignore")
        assert gpu.value.is_cuda
        both = cpu.converged & gpu.converged.cpu()
        assert (cpu.converged == gpu.converged.cpu()).float().mean() >= 0.6  # rounding decides the hopeless cases
        error = (cpu.value - gpu.value.cpu())[both].abs()
        assert error.numel() == 0 or error.max() < 1e-6 / case.least_singular_value


@pytest.mark.parametrize("linear", LINEAR_SOLVERS, ids=str)
def test_gradients_agree_with_the_cpu(linear: Solver) -> None:
    W, b = 0.3 * torch.randn(6, 6), torch.randn(4, 6)
    gradients = []
    for device in ("cpu", "cuda"):
        leaves = [t.detach().to(device).requires_grad_() for t in (W, b)]
        adjoint = rs.ImplicitAdjoint(linear, order=2)
        value = rs.resolve(lambda w, W=leaves[0]: torch.tanh(w @ W), leaves[1], 0.7, adjoint=adjoint).value
        first = torch.autograd.grad(value.square().sum(), leaves, create_graph=True)
        second = torch.autograd.grad(sum(g.sum() for g in first), leaves)
        gradients.append([g.cpu() for g in (*first, *second)])
    for cpu, gpu in zip(*gradients, strict=True):
        assert (cpu - gpu).abs().max() < 1e-7


@pytest.mark.parametrize("solver", [rs.Picard(), rs.Anderson(), rs.Newton(), rs.Broyden()], ids=str)
def test_convergence_checks_do_not_wait_for_the_device_at_every_step(solver: Solver) -> None:
    W, b = torch.linalg.qr(torch.randn(6, 6)).Q.cuda(), torch.randn(4, 6).cuda()

    def waits(steps: int) -> int:
        stopping = rs.Stopping(rtol=0.0, atol=1e-300, max_steps=steps, patience=1000)
        with warnings.catch_warnings(record=True) as caught, torch.no_grad():
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                field = rs.Rowwise(lambda w: 0.9 * torch.sin(w @ W), linear_part=0.0)
                rs.resolve(field, b, 1.0, solver=solver, stopping=stopping, on_failure="ignore")
            finally:
                torch.cuda.set_sync_debug_mode("default")
        return sum("synchroniz" in str(w.message) for w in caught)

    waits(8)
    assert waits(48) - waits(8) <= 40 / 4


def test_autocast_on_the_device() -> None:
    linear = torch.nn.Linear(64, 64).float().cuda()
    b = torch.randn(8, 64, dtype=torch.float32, device="cuda")
    seen: set[torch.dtype] = set()

    def F(w: Tensor) -> Tensor:
        image = linear(w)
        seen.add(image.dtype)
        return 0.5 * torch.tanh(image)

    with torch.autocast("cuda", dtype=torch.bfloat16):
        solution = rs.resolve(F, b, 0.5)
    solution.value.sum().backward()
    assert seen == {torch.bfloat16}
    assert solution.value.dtype == torch.float32
    assert linear.weight.grad.isfinite().all()


def test_tau_of_no_dimension_may_stay_on_the_cpu() -> None:
    tau = torch.tensor(0.5, requires_grad=True)
    rs.resolve(torch.tanh, torch.randn(3, 4, device="cuda"), tau).value.sum().backward()
    assert tau.grad is not None


# The function that records keeps the graphs of its own trial passes on another stream.
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream does not match")
@pytest.mark.parametrize("normalization", ["free", "bounded"])
def test_a_network_that_never_looks_is_replayed_as_a_cuda_graph(normalization: str) -> None:
    stopping = rs.FixedSteps(30, rtol=1e-6)
    network = rs.models.implicit_resnet18(
        0.5, 4, input_shape=(1, 8, 8), normalization=normalization, stopping=stopping, on_failure="ignore"
    ).cuda()
    plain, images = copy.deepcopy(network), torch.rand(5, 1, 8, 8, device="cuda")
    for model in (network, plain):
        model(images)  # norms are measured in full before their first use
    # The network has a hook, which may not be on what is recorded.
    graphed = torch.cuda.make_graphed_callables(torch.nn.Sequential(network), (images.clone(),))
    for _ in range(2):
        other = torch.rand_like(images)
        gradients = []
        for model in (graphed, plain):
            model.zero_grad()
            model(other).square().sum().backward()
            gradients.append([parameter.grad.clone() for parameter in model.parameters()])
        for replayed, eager in zip(*gradients, strict=True):
            torch.testing.assert_close(replayed, eager, atol=1e-4, rtol=1e-3)
