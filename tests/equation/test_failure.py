"""Every status is produced on purpose, and every failure is loud."""

import pickle
import re
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import resolvent as rs
from equations import rms
from resolvent.errors import ConvergenceWarning
from resolvent.extending import Solver
from seeding import shifted

B = torch.tensor([[1.0, 2.0], [0.5, -1.0]], dtype=torch.float64)


def status(F, tau: float = 1.0, b: Tensor = B, **options) -> list[str]:  # type: ignore[no-untyped-def]
    solution = rs.resolve(F, b, tau, on_failure="ignore", **options)
    return [rs.Status(int(code)).name for code in solution.status]


def test_converged() -> None:
    assert status(torch.tanh, 0.5) == ["CONVERGED"] * 2


def test_max_steps() -> None:
    assert status(torch.cos, 0.9, solver=rs.Picard(), stopping=rs.Stopping(max_steps=2)) == ["MAX_STEPS"] * 2


def test_diverged() -> None:
    assert status(lambda w: 3 * w, solver=rs.Picard()) == ["DIVERGED"] * 2


def test_stalled_where_there_is_no_solution() -> None:
    """w = b + w^2 + 1 has no real root for b > -3/4: descent ends at the minimum of the residual, at w = 1/2."""
    for solver in (rs.LBFGS(), rs.ConjugateGradient(), rs.GradientDescent(), rs.Anderson(), rs.Auto()):
        assert status(lambda w: w**2 + 1, b=B[:, 1:].abs(), solver=solver) == ["STALLED"] * 2
    # where the Jacobian is singular, should Newton hit it exactly
    assert set(status(lambda w: w**2 + 1, b=B[:, 1:].abs(), solver=rs.Newton())) <= {"STALLED", "BREAKDOWN"}


def test_stalled_on_a_discontinuous_field() -> None:
    """w = 1/2 - sign(w) jumps over its own solution."""
    for solver in (rs.Newton(), rs.Anderson(), rs.Broyden(), rs.Auto()):
        assert status(lambda w: -w.sign(), b=B.clamp(0.5, 0.5), solver=solver) == ["STALLED"] * 2


def test_non_finite() -> None:
    assert status(lambda w: torch.full_like(w, torch.nan)) == ["NON_FINITE"] * 2
    assert status(torch.log, solver=rs.Picard(), b=-B.abs()) == ["NON_FINITE"] * 2


def test_breakdown_of_a_singular_jacobian() -> None:
    assert status(lambda w: w, solver=rs.Newton()) == ["BREAKDOWN"] * 2


def test_one_failing_sample_leaves_the_others_alone() -> None:
    factor = torch.tensor([[0.5], [3.0]])
    solution = rs.resolve(lambda w: factor * w, B, 1.0, solver=rs.Picard(), on_failure="ignore")
    assert solution.status.tolist() == [rs.Status.CONVERGED, rs.Status.DIVERGED]
    assert (solution.value[0] - 2 * B[0]).abs().max() < 1e-8
    assert solution.residual[1] <= 3 * B[1].norm()  # the best iterate, not the last


def test_every_status_has_a_meaning_and_advice() -> None:
    from resolvent.equation.failure import _ADVICE

    assert all(status.meaning for status in rs.Status)
    assert set(_ADVICE) == set(rs.Status) - {rs.Status.RUNNING, rs.Status.CONVERGED}


def test_raise_names_count_residual_causes_and_remedies() -> None:
    factor = torch.tensor([[0.5], [3.0]])
    with pytest.raises(rs.ConvergenceError) as caught:
        rs.resolve(lambda w: factor * w, B, 1.0, solver=rs.Picard())
    message = str(caught.value)
    for part in ("1 of 2 samples", "1 diverged", "worst residual", "Picard", "What to try", "Newton", "on_failure"):
        assert part in message
    assert caught.value.solution.status.tolist() == [rs.Status.CONVERGED, rs.Status.DIVERGED]


def test_the_error_can_be_handed_from_one_process_to_another() -> None:
    with pytest.raises(rs.ConvergenceError) as caught:
        rs.resolve(lambda w: 3 * w, B, 1.0, solver=rs.Picard())
    copy = pickle.loads(pickle.dumps(caught.value))
    assert str(copy) == str(caught.value)
    assert isinstance(copy, rs.ConvergenceError)


def test_a_cotangent_that_is_nearly_nothing_is_no_failure() -> None:
    """A thousandth of the smallest number is zero, and no residual is below that."""
    for linear in (rs.DenseLU(), rs.GMRES(), rs.Neumann(), rs.BiCGStab()):
        b = B.float().requires_grad_()
        value = rs.resolve(lambda w: 0.5 * torch.sin(w), b, 1.0, adjoint=rs.ImplicitAdjoint(linear)).value
        (gradient,) = torch.autograd.grad(value, b, torch.full_like(b, 1e-45))
        assert (gradient.abs() < 1e-43).all()


@pytest.mark.parametrize("size", [1e-44, 1e-30, 1e-24, 1e-12, 1e12, 1e30])
@pytest.mark.parametrize("linear", [rs.GMRES(), rs.BiCGStab(), rs.Anderson(), None], ids=lambda s: type(s).__name__)
def test_the_size_of_a_cotangent_does_not_matter(linear: Any, size: float) -> None:
    """The squares of small numbers are zero, and those of large ones infinite."""
    torch.manual_seed(shifted(0))
    matrix = 0.3 * torch.randn(40, 40) / 40**0.5
    b = torch.randn(3, 40)
    grads = []
    for dtype, cotangent in ((torch.float32, size), (torch.float64, 1.0)):
        leaf = b.to(dtype).requires_grad_()
        F = nn.Sequential(nn.Linear(40, 40, bias=False), nn.Tanh()).to(dtype)
        F[0].weight.data = matrix.to(dtype)
        value = rs.resolve(F, leaf, 2.0, adjoint=rs.ImplicitAdjoint(linear)).value
        grads += torch.autograd.grad(value, leaf, torch.full_like(leaf, cotangent))
    torch.testing.assert_close(grads[0].double() / size, grads[1], rtol=1e-4, atol=0.2 if size < 1e-40 else 1e-5)


def test_warn_and_ignore() -> None:
    with pytest.warns(ConvergenceWarning, match="2 of 2 samples"):
        rs.resolve(lambda w: 3 * w, B, 1.0, solver=rs.Picard(), on_failure="warn")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not rs.resolve(lambda w: 3 * w, B, 1.0, solver=rs.Picard(), on_failure="ignore").converged.any()


def test_the_backward_solve_follows_the_same_policy() -> None:
    def F(w: Tensor) -> Tensor:
        return torch.sin(3 * w)  # Newton solves this, but the Neumann series of the backward pass diverges

    def loss(**options) -> Tensor:  # type: ignore[no-untyped-def]
        b = B.clone().requires_grad_()
        return rs.resolve(F, b, 1.0, solver=rs.Newton(), **options).value.sum()

    neumann = rs.ImplicitAdjoint(solver=rs.Neumann())
    with pytest.raises(rs.ConvergenceError, match="backward solve"):
        loss(adjoint=neumann).backward()
    with pytest.warns(ConvergenceWarning, match="backward solve"):
        loss(adjoint=neumann, on_failure="warn").backward()
    loss(adjoint=neumann, on_failure="ignore").backward()
    loss(adjoint=rs.ImplicitAdjoint(solver=rs.Neumann(), on_failure="ignore")).backward()
    loss().backward()


def test_a_singular_backward_system_is_reported() -> None:
    """At w = 0 the field w + w^3 has slope one: the solution is exact and its derivative infinite."""
    b = torch.zeros(1, 1, requires_grad=True)
    value = rs.resolve(lambda w: w + w**3, b, 1.0, solver=rs.Picard()).value
    with pytest.raises(rs.ConvergenceError, match="singular"):
        value.sum().backward()


def test_bicgstab_breaks_down_where_it_must() -> None:
    """For a rotation by a right angle the first direction is orthogonal to its image. GMRES does not mind."""
    A = torch.tensor([[0.0, 1.0], [-1.0, 0.0]])  # is I - tau F' for F = (I - A) w
    b = torch.tensor([[1.0, 0.0]], requires_grad=True)
    value = rs.resolve(lambda w: w @ (torch.eye(2) - A).T, b, 1.0, adjoint=rs.ImplicitAdjoint(rs.BiCGStab())).value
    with pytest.raises(rs.ConvergenceError, match="singular"):
        value.sum().backward()
    b.grad = None
    rs.resolve(
        lambda w: w @ (torch.eye(2) - A).T, b, 1.0, adjoint=rs.ImplicitAdjoint(rs.GMRES())
    ).value.sum().backward()
    assert (b.grad - torch.linalg.solve(A.T, torch.ones(2))).abs().max() < 1e-12


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("policy", ["raise", "warn", "ignore"])
def test_input_that_is_not_finite_is_an_error_under_each_policy(bad: float, policy: str) -> None:
    b = B.clone()
    b[1, 0] = bad
    with pytest.raises(ValueError, match="b must be finite, but 1 of its 4 entries"):
        rs.resolve(torch.tanh, b, 0.5, on_failure=policy)
    with pytest.raises(ValueError, match="tau must be finite"):
        rs.resolve(torch.tanh, B, torch.tensor([0.5, bad]), on_failure=policy)
    with pytest.raises(ValueError, match="w0 must be finite"):
        rs.resolve(torch.tanh, B, 0.5, w0=b, on_failure=policy)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"F": "tanh"}, "F must be callable"),
        ({"b": torch.ones(2, 3, dtype=torch.int64)}, r"floating-point type, got torch.int64: .* \.float\(\)"),
        ({"b": torch.ones(2, 3, dtype=torch.complex128)}, "got torch.complex128: solve for the real parts"),
        ({"b": [[1.0]]}, r"got a list: make a tensor of it, torch\.tensor\(b\)"),
        ({"b": 1.0}, r"got a float: make a tensor of it"),
        ({"b": torch.tensor(1.0)}, r"shape \(\)"),
        ({"b": torch.zeros(3, 0)}, r"shape \(3, 0\)"),
        ({"tau": "0.5"}, "tau must be a finite number or a tensor, got '0.5'"),
        ({"tau": float("nan")}, "got nan"),
        ({"tau": torch.ones(3)}, r"each of the 2 samples, got shape \(3,\)"),
        ({"tau": torch.ones(2, 1)}, r"got shape \(2, 1\)"),
        ({"tau": torch.tensor(1)}, "got a tensor of torch.int64"),
        ({"w0": torch.ones(2, 3)}, r"w0 must be like b, \(2, 2\)"),
        ({"w0": B.float()}, "got .*float32"),
        ({"w0": 0.0}, "got float"),
        ({"solver": "newton"}, r"such as rs.Newton\(\), or None, got 'newton'"),
        ({"solver": rs.Newton}, "solver must be an object"),
        ({"solver": rs.GMRES()}, "GMRES solves linear systems"),
        ({"stopping": 1e-6}, "stopping must be an object"),
        ({"adjoint": "implicit"}, "adjoint must be an object"),
        ({"on_failure": "explode"}, "on_failure must be one of .*, got 'explode'"),
        ({"F": lambda w: w[:, :1]}, r"it took \(2, 2\) and gave \(2, 1\)"),
        ({"F": lambda w: w.float()}, "it took torch.float64 and gave torch.float32"),
        ({"F": lambda w: 1.0}, "gave float"),
    ],
)
def test_wrong_arguments_are_refused_at_once(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rs.resolve(**({"F": torch.tanh, "b": B, "tau": 0.5} | arguments))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: rs.Stopping(rtol=-1e-3), "rtol must be .* got -0.001"),
        (lambda: rs.Stopping(atol=float("inf")), "atol must be"),
        (lambda: rs.Stopping(rtol=0.0, atol=0.0), "both 0"),
        (lambda: rs.Stopping(max_steps=0), "max_steps must be .* got 0"),
        (lambda: rs.Stopping(max_steps=2.5), "max_steps"),
        (lambda: rs.Stopping(check_every=-1), "check_every"),
        (lambda: rs.Stopping(check_every=0), "FixedSteps"),
        (lambda: rs.Stopping(patience=0), "patience"),
        (lambda: rs.Stopping(divergence=0.5), "divergence"),
        (lambda: rs.Picard(damping=0.0), "damping"),
        (lambda: rs.Anderson(memory=0), "memory"),
        (lambda: rs.Anderson(mixing=2.0), "mixing"),
        (lambda: rs.Anderson(regularization=-1.0), "regularization"),
        (lambda: rs.Broyden(memory=0), "memory"),
        (lambda: rs.LBFGS(memory=0), "memory"),
        (lambda: rs.GMRES(restart=0), "restart"),
        (lambda: rs.GradientDescent(momentum=1.0), "momentum"),
        (lambda: rs.GradientDescent(scaling=-1.0), "scaling"),
        (lambda: rs.NewtonKrylov(linear="gmres"), "linear"),
        (lambda: rs.NewtonKrylov(inner_steps=0), "inner_steps"),
        (lambda: rs.ImplicitAdjoint(order=0), "order"),
        (lambda: rs.ImplicitAdjoint(solver="gmres"), "solver"),
        (lambda: rs.ImplicitAdjoint(stopping=1e-6), "stopping"),
        (lambda: rs.ImplicitAdjoint(on_failure="x"), "on_failure"),
        (lambda: rs.adjoints.NeumannAdjoint(terms=-1), "terms"),
    ],
)
def test_wrong_settings_are_refused_where_they_are_made(make, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=message):
        make()


def test_unknown_options_are_errors() -> None:
    with pytest.raises(TypeError, match="stop_mode"):
        rs.resolve(torch.tanh, B, 0.5, stop_mode="rel")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="m"):
        rs.Anderson(m=5)  # type: ignore[call-arg]


def test_overflow_of_the_scale_is_no_convergence() -> None:
    """The square of 1e30 is infinite in single precision, and everything is within an infinite tolerance."""
    b = torch.full((1, 2), 1e30, dtype=torch.float32)
    assert status(torch.tanh, b=b) == ["NON_FINITE"]


@pytest.mark.parametrize(("dtype", "size"), [(torch.float16, 6e4), (torch.bfloat16, 3e38)])
def test_a_solution_beyond_the_numbers_of_its_dtype_is_no_convergence(dtype: torch.dtype, size: float) -> None:
    """Solvers compute in single precision, where 1.13 times these numbers are finite, and their dtype ends before."""
    b = torch.tensor([[size], [0.5 * size]], dtype=dtype)
    found = rs.resolve(
        lambda w: torch.full_like(w, 0.13 * size), b, 1.0, solver=rs.solvers.Chord(), on_failure="ignore"
    )
    assert found.status.tolist() == [rs.Status.NON_FINITE, rs.Status.CONVERGED]


@pytest.mark.parametrize("solver", [rs.Picard(), rs.Anderson()], ids=str)
def test_a_residual_near_rounding_that_may_still_fall_is_no_divergence(solver: Solver) -> None:
    """In bfloat16 the tolerance is two roundings, and A^{-1} amplifies them eightfold: the first residual within them
    says nothing about the error, and a later one is small compared with b as well."""
    b, tau = torch.tensor([[-0.322265625, -1.5]], dtype=torch.bfloat16), 0.89453125
    found = rs.resolve(lambda w: torch.sin(w + 0.3), b, tau, solver=solver, on_failure="ignore")
    assert found.converged.all()
    w = found.value.double()
    rounding = torch.finfo(torch.bfloat16).eps * rms(w)
    assert (rms(b.double() + tau * torch.sin(w + 0.3) - w) <= 2e-2 * rms(b.double()) + rounding).all()


def folded(w: Tensor, c: Tensor) -> Tensor:
    """w = b + tau (w^2 + c): two roots where 4 tau (b + tau c) < 1, none beyond."""
    return w**2 + c


def test_the_cause_of_a_fold_is_named() -> None:
    b, c = torch.full((3, 1), 0.1), torch.tensor([[0.0], [1.0], [0.5]])
    with pytest.raises(rs.ConvergenceError) as caught:
        rs.resolve(rs.Rowwise(folded, c), b, 1.0)
    message = str(caught.value)
    # The branch from b ends where 4 tau (b + tau c) = 1: at tau = 0.45 for c = 1.
    assert "2 of 3 samples" in message
    assert "samples 1, 2" in message
    assert "behind a fold" in message
    assert "4" in message.split("ends at ")[1][:3]
    assert "What to try" not in message
    assert "rs.analysis.diagnose" in message


def test_the_cause_of_a_pole_is_named() -> None:
    """w = b + w has no solution; F' = 1 is the pole of tau = 1."""
    with pytest.raises(rs.ConvergenceError, match="near a pole") as caught:
        rs.resolve(lambda w: w, B, 1.0)
    assert "samples 0, 1" in str(caught.value)
    assert "less tau" in str(caught.value)


def test_masked_samples_keep_their_best_iterate_and_get_no_gradient() -> None:
    b = torch.full((3, 1), 0.1, requires_grad=True)
    c = torch.tensor([[0.0], [1.0], [0.1]], requires_grad=True)
    policy = rs.Mask()
    solution = rs.resolve(rs.Rowwise(folded, c), b, 1.0, on_failure=policy)
    assert solution.converged.tolist() == [True, False, True]
    assert solution.value.isfinite().all()
    solution.value.sum().backward()
    assert b.grad is not None
    assert c.grad is not None
    assert b.grad[1] == c.grad[1] == 0
    alone = torch.full((1, 1), 0.1, requires_grad=True)
    rs.resolve(rs.Rowwise(folded, c.detach()[2:]), alone, 1.0).value.sum().backward()
    torch.testing.assert_close(b.grad[2:], alone.grad)
    assert (policy.failed, policy.seen) == (1, 6)  # forward and backward


def test_too_many_masked_samples_are_an_error() -> None:
    c = torch.tensor([[0.0], [1.0]])
    policy = rs.Mask(most=0.4, over=3)
    for _ in range(2):
        rs.resolve(rs.Rowwise(folded, c), torch.full((2, 1), 0.1), 1.0, on_failure=policy)
    with pytest.raises(rs.ConvergenceError, match="3 of 6 samples failed"):
        rs.resolve(rs.Rowwise(folded, c), torch.full((2, 1), 0.1), 1.0, on_failure=policy)
    rs.resolve(rs.Rowwise(folded, c), torch.full((2, 1), 0.1), 1.0, on_failure=rs.Mask(most=0.5, over=1))


@pytest.mark.parametrize("mode", ["auto", "sequential"])
def test_masks_count_every_layer_of_every_sample(mode: str) -> None:
    policy = rs.Mask()
    block = rs.ThetaBlock(rs.fields.MLP(2, 4, 1), 0.5, num_steps=4, mode=mode, on_failure=policy)
    with torch.no_grad():
        block(torch.randn(8, 2))
    assert (policy.failed, policy.seen) == (0, 4 * 8)


def test_values_that_are_not_finite_are_not_masked() -> None:
    with pytest.raises(rs.ConvergenceError, match="not finite"):
        rs.resolve(lambda w: torch.log(w - 5), B, 1.0, on_failure="mask")
    with pytest.raises(ValueError, match="b must be finite"):
        rs.resolve(torch.tanh, B * torch.nan, 1.0, on_failure="mask")


def test_reversible_blocks_do_not_mask() -> None:
    block = rs.ThetaBlock(rs.fields.MLP(2, 4, 1), memory="reversible", on_failure="mask")
    with pytest.raises(ValueError, match="memory='checkpoint'"):
        block(B)


@pytest.mark.parametrize(("arguments", "told"), [({"most": 2}, "got 2"), ({"over": 0}, "got 0")])
def test_refused_masks(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        rs.Mask(**arguments)


@pytest.mark.parametrize("memory", ["store", pytest.param("checkpoint", marks=pytest.mark.slow)])
@pytest.mark.parametrize("mode", ["sequential", "auto"])
def test_a_sample_masked_in_one_layer_gets_no_gradient_from_the_block(memory: str, mode: str) -> None:
    class Folded(rs.fields.Field):
        rowwise = True

        def __init__(self) -> None:
            super().__init__()
            self.a = torch.nn.Parameter(torch.ones(1))

        def forward(self, t: Any, y: Tensor) -> Tensor:
            return self.a * y**2

    x = torch.tensor([[0.05], [1.5], [0.1]], requires_grad=True)
    field = Folded()
    block = rs.ThetaBlock(field, 1.0, 3, 1.5, memory=memory, mode=mode, on_failure="mask")
    y = block(x)
    y.square().sum().backward()
    assert x.grad is not None
    assert x.grad[1] == 0
    kept = torch.tensor([[0.05], [0.1]], requires_grad=True)
    got = field.a.grad.clone()
    field.a.grad = None
    rs.ThetaBlock(field, 1.0, 3, 1.5, mode=mode)(kept).square().sum().backward()
    torch.testing.assert_close(x.grad[[0, 2]], kept.grad, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(got, field.a.grad, rtol=1e-7, atol=1e-9)
    assert block.options.on_failure.failed > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("unknowns", [1, 2, 20, 40, 200])
def test_a_first_guess_within_the_tolerance_is_not_the_solution(dtype: torch.dtype, unknowns: int) -> None:
    """F is small beside b, but not nothing: a network of many such layers would do nothing."""
    b = torch.ones(3, unknowns, dtype=dtype, requires_grad=True)
    stopping = rs.Stopping(rtol=0.05)
    solution = rs.resolve(lambda w: -w, b, 0.03, stopping=stopping)
    assert (solution.steps >= 1).all()
    torch.testing.assert_close(solution.value.double(), torch.full((3, unknowns), 1 / 1.03), rtol=8e-3, atol=0.0)
    solution.value.sum().backward()
    assert b.grad is not None
    torch.testing.assert_close(b.grad.double(), torch.full((3, unknowns), 1 / 1.03), rtol=8e-3, atol=0.0)


def test_a_given_guess_within_the_tolerance_is_the_solution() -> None:
    b = torch.ones(3, 40)
    solution = rs.resolve(lambda w: -w, b, 1.0, w0=0.5 * b)
    assert solution.steps.tolist() == [0, 0, 0]
    assert torch.equal(solution.value, 0.5 * b)


def test_rounding_is_named_as_the_cause_and_the_advice_helps() -> None:
    """Slopes of -1 and -600 between fixed axes: the product with the matrix rounds far above the tolerance."""
    axes = torch.tensor([[0.6, -0.8], [0.8, 0.6]])
    matrix = (axes @ torch.diag(torch.tensor([-1.0, -600.0])) @ axes.T).float()
    b = torch.randn(200, 2, dtype=torch.float32)
    with pytest.raises(rs.ConvergenceError, match="The cause: rounding") as failure:
        rs.resolve(lambda w: w @ matrix, b, 1.0)
    advice = re.search(r"rs.Stopping\(rtol=(.*?)\)", str(failure.value))
    assert advice is not None
    solution = rs.resolve(lambda w: w @ matrix, b, 1.0, stopping=rs.Stopping(rtol=float(advice[1])))
    exact = torch.linalg.solve(torch.eye(2) - matrix.double(), b.double(), left=False)
    torch.testing.assert_close(solution.value.double(), exact, rtol=0.0, atol=1e-3)
    rs.resolve(lambda w: w @ matrix.double(), b.double(), 1.0)
