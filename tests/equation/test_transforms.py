"""A solve inside the rest of PyTorch: torch.func, forward mode, compilation, autocast."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, func
from torch.autograd import forward_ad
from torch.utils._pytree import tree_leaves

import resolvent as rs
from resolvent.extending import Solver
from seeding import shifted

TIGHT = rs.Stopping(rtol=1e-11, atol=1e-12)
# Pairs of a forward and a backward solver, such that each occurs.
PAIRS = [
    (rs.Auto(), None),
    *(
        pytest.param(pair, marks=pytest.mark.slow)
        for pair in (
            (rs.Picard(), rs.GMRES()),
            (rs.Anderson(), rs.GMRES(restart=2)),
            (rs.NewtonKrylov(), rs.BiCGStab()),
            (rs.Broyden(), rs.Neumann()),
            (rs.solvers.Chord(), rs.DenseLU()),
        )
    ),
]


def weights() -> Tensor:
    return 0.3 * torch.randn(3, 3, generator=torch.Generator().manual_seed(shifted(0)))


def right_hand_side() -> Tensor:
    return torch.randn(4, 3, generator=torch.Generator().manual_seed(shifted(1)))


def reference(W: Tensor, b: Tensor) -> Tensor:
    """The same by three hundred contractions, which every transform can see through."""
    w = b
    for _ in range(300):
        w = b + 0.8 * torch.tanh(w @ W.mT)
    return (w**2).sum()


def loss(W: Tensor, b: Tensor, solver: Solver | None = None, linear: Solver | None = None, order: int = 2) -> Tensor:
    adjoint = rs.ImplicitAdjoint(solver=linear, order=order)
    tau = torch.tensor(0.8)
    value = rs.resolve(lambda w: torch.tanh(w @ W.mT), b, tau, solver=solver, adjoint=adjoint, stopping=TIGHT).value
    return (value**2).sum()


def two(x: Tensor) -> Tensor:
    return torch.stack([x, 0.5 * x])


def pull(f: Callable[[Tensor, Tensor], Tensor], W: Tensor, b: Tensor, cotangent: Tensor) -> Tensor:
    gradient: Tensor = func.vjp(lambda b: f(W, b), b)[1](cotangent)[0]
    return gradient.sum()


def tangent(f: Callable[[Tensor, Tensor], Tensor], W: Tensor, b: Tensor) -> Tensor:
    """The derivative by the cotangent, which a vjp is linear in; it depends on W all the same."""
    one = torch.tensor(1.0)
    derivative: Tensor = func.jvp(lambda c: pull(f, W, b, c), (one,), (one,))[1]
    return derivative


def tangent_by_reverse(f: Callable[[Tensor, Tensor], Tensor], W: Tensor, b: Tensor) -> Tensor:
    derivative: Tensor = func.grad(lambda c: pull(f, W, b, c))(torch.tensor(1.0))
    return derivative


Transform = Callable[[Callable[[Tensor, Tensor], Tensor], Tensor, Tensor], object]
FIRST: dict[str, Transform] = {
    "grad": lambda f, W, b: func.grad(f, (0, 1))(W, b),
    "jacrev": lambda f, W, b: func.jacrev(f, (0, 1))(W, b),
    "jacfwd": lambda f, W, b: func.jacfwd(f, (0, 1))(W, b),
    "jvp": lambda f, W, b: func.jvp(f, (W, b), (torch.ones_like(W), torch.ones_like(b))),
    "vmap over what F closes over": lambda f, W, b: func.vmap(f, (0, None))(two(W), b),
    "vmap over b": lambda f, W, b: func.vmap(f, (None, 0))(W, two(b)),
    "vmap of vmap": lambda f, W, b: func.vmap(func.vmap(f, (None, 0)), (0, None))(two(W), two(b)),
    "vmap of grad": lambda f, W, b: func.vmap(func.grad(f), (0, None))(two(W), b),
    "grad of vmap": lambda f, W, b: func.grad(lambda W: func.vmap(f, (0, None))(two(W), b).sum())(W),
    "vmap of jacrev": lambda f, W, b: func.vmap(func.jacrev(lambda W, b: f(W, b[None])), (0, None))(two(W), b[0]),
    "jacfwd of vmap": lambda f, W, b: func.jacfwd(lambda W: func.vmap(f, (0, None))(two(W), b))(W),
}
SECOND: dict[str, Transform] = {
    "hessian": lambda f, W, b: func.hessian(f)(W, b),
    "reverse over reverse": lambda f, W, b: func.jacrev(func.jacrev(f))(W, b),
    "forward over forward": lambda f, W, b: func.jacfwd(func.jacfwd(f))(W, b),
    "reverse over forward": lambda f, W, b: func.jacrev(func.jacfwd(f))(W, b),
    "forward over vmap of reverse": lambda f, W, b: func.jacfwd(
        lambda W: func.vmap(func.grad(f), (0, None))(two(W), b)
    )(W),
    "reverse over tangent": lambda f, W, b: func.grad(lambda W: tangent(f, W, b))(W),
    "forward over tangent": lambda f, W, b: func.jacfwd(lambda W: tangent(f, W, b))(W),
    "reverse over tangent by reverse": lambda f, W, b: func.grad(lambda W: tangent_by_reverse(f, W, b))(W),
    "forward over tangent by reverse": lambda f, W, b: func.jacfwd(lambda W: tangent_by_reverse(f, W, b))(W),
}


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{type(pair[0]).__name__}-{type(pair[1]).__name__}")
@pytest.mark.parametrize("name", [*FIRST, *SECOND])
def test_torch_func(name: str, pair: tuple[Solver, Solver | None]) -> None:
    transform = (FIRST | SECOND)[name]
    got = tree_leaves(transform(lambda W, b: loss(W, b, *pair), weights(), right_hand_side()))
    expected = tree_leaves(transform(reference, weights(), right_hand_side()))
    for a, e in zip(got, expected, strict=True):
        assert (a - e).abs().max() < 1e-8


@pytest.mark.parametrize("name", SECOND)
def test_second_derivatives_that_were_not_prepared_raise(name: str) -> None:
    with pytest.raises(rs.errors.DerivativeOrderError):
        SECOND[name](lambda W, b: loss(W, b, order=1), weights(), right_hand_side())


def test_per_sample_gradients_of_a_module() -> None:
    module = torch.nn.Linear(3, 3)
    parameters = dict(module.named_parameters())

    def single(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        def F(w: Tensor) -> Tensor:
            return torch.tanh(func.functional_call(module, parameters, (w,)))

        return rs.resolve(F, x[None], 0.4).value.sum()

    x = torch.randn(5, 3)
    got = func.vmap(func.grad(single), (None, 0))(parameters, x)
    for i in range(5):
        expected = torch.autograd.grad(single(parameters, x[i]), list(parameters.values()))
        for name, gradient in zip(parameters, expected, strict=True):
            assert (got[name][i] - gradient).abs().max() < 1e-8


def test_failures_are_loud_inside_vmap() -> None:
    factors = torch.tensor([0.5, 3.0])
    with pytest.raises(rs.ConvergenceError, match="2 of 4 samples"):
        func.vmap(lambda k: rs.resolve(lambda w: k * w, torch.ones(2, 3), 1.0, solver=rs.Picard()).value)(factors)

    def statuses(k: Tensor) -> Tensor:
        return rs.resolve(lambda w: k * w, torch.ones(2, 3), 1.0, solver=rs.Picard(), on_failure="ignore").status

    converged, diverged = rs.Status.CONVERGED, rs.Status.DIVERGED
    assert func.vmap(statuses)(factors).tolist() == [[converged] * 2, [diverged] * 2]


def test_the_linear_part_and_conditions_inside_transforms() -> None:
    k = torch.tensor([[10.0], [20.0]])

    def total(c: Tensor, b: Tensor) -> Tensor:
        field = rs.Rowwise(lambda w, k: c * w + torch.tanh(w) + k, k, linear_part=c)
        return rs.resolve(field, b, 0.5, solver=rs.Picard(), adjoint=rs.ImplicitAdjoint(rs.Neumann())).value.sum()

    c, b = torch.tensor(-30.0), torch.randn(2, 3)
    gradient = func.grad(total)(c, b)
    step = 1e-4
    assert abs(gradient - (total(c + step, b) - total(c - step, b)) / (2 * step)) < 1e-6
    assert (func.vmap(total, (0, None))(two(c), b)[0] - total(c, b)).abs() < 1e-9


@pytest.mark.parametrize("enabled", [True, False], ids=["grad", "no_grad"])
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{type(pair[0]).__name__}-{type(pair[1]).__name__}")
def test_forward_mode(pair: tuple[Solver, Solver | None], enabled: bool) -> None:
    W, b = weights(), right_hand_side()
    direction = torch.ones_like(W)
    with torch.set_grad_enabled(enabled), forward_ad.dual_level():
        dual = forward_ad.make_dual(W, direction)
        got = loss(dual, b, *pair)
        expected = reference(dual, b)
        assert not got.requires_grad
        assert abs(forward_ad.unpack_dual(got).tangent - forward_ad.unpack_dual(expected).tangent) < 1e-8


def test_forward_over_reverse_outside_of_torch_func() -> None:
    W, b = weights(), right_hand_side()

    def hessian_vector(f: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(W.clone().requires_grad_(), torch.ones_like(W))
            (gradient,) = torch.autograd.grad(f(dual, b), dual)
            return forward_ad.unpack_dual(gradient).tangent

    assert (hessian_vector(loss) - hessian_vector(reference)).abs().max() < 1e-8
    with pytest.raises(rs.errors.DerivativeOrderError):
        hessian_vector(lambda W, b: loss(W, b, order=1))


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(5, 5)
        self.outer = torch.nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        solution = rs.resolve(lambda w: torch.tanh(self.inner(w)), torch.relu(x), 0.5)
        return self.outer(solution.value)


# torch.compile looks at the .grad of the solution, where its own graph resumes.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.slow
def test_compile_of_a_model_that_contains_a_solve() -> None:
    model, x = Model(), torch.randn(7, 5)
    expected = model(x)
    expected.sum().backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    compiled = torch.compile(model, backend="aot_eager")(x)
    compiled.sum().backward()
    assert torch.equal(compiled, expected)
    for p, gradient in zip(model.parameters(), gradients, strict=True):
        assert (p.grad - gradient).abs().max() < 1e-14


def test_a_solve_is_one_graph_break_which_says_why() -> None:
    model, x = Model(), torch.randn(7, 5)
    with pytest.raises(Exception, match="resolve"):
        torch.compile(model, backend="eager", fullgraph=True)(x)


# It does so with the point at which a field is evaluated, too.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_a_compiled_field() -> None:
    linear = torch.nn.Linear(5, 5)
    compiled = torch.compile(linear, backend="aot_eager")
    b = torch.randn(3, 5)
    for solver, adjoint in ((rs.Newton(), None), (rs.Anderson(), rs.ImplicitAdjoint(rs.GMRES()))):
        value = rs.resolve(lambda w: torch.tanh(compiled(w)), b, 0.5, solver=solver, adjoint=adjoint).value
        plain = rs.resolve(lambda w: torch.tanh(linear(w)), b, 0.5, solver=solver, adjoint=adjoint).value
        for got, expected in zip(
            torch.autograd.grad(value.sum(), linear.parameters()),
            torch.autograd.grad(plain.sum(), linear.parameters()),
            strict=True,
        ):
            assert (got - expected).abs().max() < 1e-10


@pytest.mark.parametrize(
    "solver", [rs.Auto(), rs.Picard(), rs.Anderson(), rs.Broyden(), rs.NewtonKrylov(), rs.LBFGS()], ids=str
)
def test_autocast_rounds_f_but_neither_state_nor_residual(solver: Solver) -> None:
    linear = torch.nn.Linear(40, 40).float()
    with torch.no_grad():
        linear.weight *= 0.5
    b = torch.randn(6, 40, dtype=torch.float32)
    seen: set[torch.dtype] = set()

    def F(w: Tensor) -> Tensor:
        assert w.dtype == torch.float32
        image = linear(w)
        seen.add(image.dtype)
        return torch.tanh(image)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        solution = rs.resolve(F, b, 0.5, solver=solver)
    assert seen == {torch.bfloat16}
    assert solution.value.dtype == solution.residual.dtype == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        defect = b + 0.5 * torch.tanh(linear(solution.value.detach())).float() - solution.value.detach()
    assert (solution.residual - defect.norm(dim=1) / 40**0.5).abs().max() < 1e-6
    solution.value.sum().backward()
    reduced = linear.weight.grad.clone()
    linear.zero_grad()
    rs.resolve(lambda w: torch.tanh(linear(w)), b, 0.5, solver=rs.Anderson()).value.sum().backward()
    assert (reduced - linear.weight.grad).norm() < 0.05 * linear.weight.grad.norm()


def test_a_model_in_half_precision() -> None:
    linear = torch.nn.Linear(4, 4).bfloat16()
    b = torch.randn(3, 4).bfloat16().requires_grad_()
    solution = rs.resolve(lambda w: torch.tanh(linear(w)), b, 0.5)
    assert solution.value.dtype == torch.bfloat16
    assert solution.residual.dtype == torch.float32
    solution.value.sum().backward()
    assert b.grad.dtype == linear.weight.grad.dtype == torch.bfloat16


def test_checkpointing_and_deepcopy_and_pickle() -> None:
    import copy
    import pickle

    from torch.utils.checkpoint import checkpoint

    model, x = Model(), torch.randn(7, 5, requires_grad=True)
    (expected,) = torch.autograd.grad(model(x).sum(), x)
    (got,) = torch.autograd.grad(checkpoint(model, x, use_reentrant=False).sum(), x)
    assert torch.equal(got, expected)
    for item in (rs.Anderson(), rs.NewtonKrylov(), rs.Stopping(rtol=1e-3), rs.ImplicitAdjoint(rs.GMRES(), order=2)):
        assert pickle.loads(pickle.dumps(item)) == item
        assert copy.deepcopy(item) == item


@pytest.mark.parametrize("solver", [rs.Auto(), rs.Newton(), rs.NewtonKrylov(), rs.LBFGS(), rs.Anderson()], ids=str)
def test_inference_mode(solver: Solver) -> None:
    """Also where b, a condition and a tensor that F closes over were made in inference mode."""
    W = weights()
    b = right_hand_side()
    expected = rs.resolve(lambda w: torch.tanh(w @ W) * 0.5 * b, b, 0.8).value
    with torch.inference_mode():
        made = b * 1.0
        plain = rs.resolve(lambda w: torch.tanh(w @ W) * 0.5 * made, made, 0.8, solver=solver).value
        rowwise = rs.Rowwise(lambda w, c: torch.tanh(w @ W) * 0.5 * c, made)
        declared = rs.resolve(rowwise, made, torch.full((4,), 0.8), solver=solver).value
    for value in (plain, declared):
        assert not value.requires_grad
        assert (value - expected).abs().max() < 1e-8


def test_no_gradient_is_kept_for_the_stage() -> None:
    b = torch.randn(2, 3, requires_grad=True)
    stages: list[Tensor] = []

    def F(w: Tensor) -> Tensor:
        stages.append(w)
        return torch.tanh(w)

    rs.resolve(F, b, 0.5).value.sum().backward()
    assert all(stage.grad is None for stage in stages if stage.is_leaf)


@pytest.mark.slow
def test_a_solve_inside_of_the_field_of_another() -> None:
    """F itself is defined by a resolvent; first and second derivatives pass through both."""
    W = (0.3 * torch.randn(3, 3)).requires_grad_()
    b = torch.randn(2, 3, requires_grad=True)
    adjoint = rs.ImplicitAdjoint(order=2)

    def outer(b: Tensor, W: Tensor) -> Tensor:
        def F(w: Tensor) -> Tensor:
            inner = rs.ImplicitAdjoint(order=3)
            return torch.tanh(rs.resolve(lambda v: torch.sin(v @ W), w, 0.5, adjoint=inner, stopping=TIGHT).value)

        return rs.resolve(F, b, 0.4, adjoint=adjoint, stopping=TIGHT).value

    assert torch.autograd.gradcheck(outer, (b, W))
    assert torch.autograd.gradgradcheck(outer, (b, W))
