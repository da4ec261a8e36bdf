"""What a pass keeps: measured in bytes, and checked to change no gradient."""

import gc
import weakref

import pytest
import torch
from torch import Tensor, nn

import resolvent as rs
from resolvent import fields, schemes
from resolvent.blocks import Block, Reversible, ThetaBlock
from resolvent.errors import ReconstructionError
from resolvent.extending import Solver
from resolvent.solvers.resolve import solve_options
from schemes.catalogue import ONE_STEP, SCHEMES, column

POLICIES = ["store", "checkpoint", "reversible"]
SHARP = rs.Stopping(rtol=1e-12, atol=1e-12)


class Saved:
    """A tensor that a graph has saved, and that lives as long as the graph."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def kept_bytes(block: Block, x: Tensor) -> int:
    """The distinct memory that the graph of a forward pass holds on to, weights and input aside.

    Everything is counted that autograd has saved and not dropped again, and what a Function keeps in its context
    besides.
    """
    known = {tensor.untyped_storage().data_ptr() for tensor in (x, *block.parameters(), *block.buffers())}
    kept: weakref.WeakSet[Saved] = weakref.WeakSet()

    def note(tensor: Tensor) -> Saved:
        saved = Saved(tensor.detach())  # With its graph it would keep itself alive.
        kept.add(saved)
        return saved

    with torch.autograd.graph.saved_tensors_hooks(note, lambda saved: saved.tensor):
        y = block(x)
    gc.collect()
    ((node, _),) = y.grad_fn.next_functions if y.grad_fn.name() == "CloneBackward0" else ((y.grad_fn, 0),)
    reconstruction = getattr(getattr(node, "replay", None), "reconstruction", None)
    marks = reconstruction.marks if reconstruction is not None else ()
    storages = {tensor.untyped_storage() for tensor in (*marks, *(saved.tensor for saved in kept))}
    sizes = {storage.data_ptr(): storage.nbytes() for storage in storages}
    return sum(size for pointer, size in sizes.items() if pointer not in known)


class Rotation(fields.Field):
    """A field that neither dissipates nor grows much, with wide hidden layers."""

    rowwise = True

    def __init__(self, dim: int = 64, width: int = 64) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(dim, width), nn.Linear(width, dim, bias=False)

    def forward(self, t: float | Tensor, y: Tensor) -> Tensor:
        u = torch.tanh(self.inner(y) + column(t, y))
        return 0.3 * (self.outer(u) - u @ self.inner.weight)


SLOW = [pytest.param(theta, marks=pytest.mark.slow) for theta in (0.0, 1.0)]


@pytest.mark.slow
@pytest.mark.parametrize("theta", [0.5, *SLOW])
def test_memory_grows_with_depth_under_store_and_not_under_reversible(theta: float) -> None:
    field, x = Rotation(), torch.randn(16, 64, requires_grad=True)
    state = x.numel() * x.element_size()

    def growth(memory: str) -> float:
        """States' worth of memory that one more step costs."""
        shallow, deep = (kept_bytes(ThetaBlock(field, theta, n, n * 0.02, memory=memory), x) for n in (8, 40))
        return (deep - shallow) / 32 / state

    assert growth("store") >= 2.0
    assert growth("checkpoint") == pytest.approx(1.0, abs=0.01)
    # One number per sample, where a state has 64.
    assert growth("reversible") == pytest.approx(1 / 64, abs=1e-6)


def test_peak_memory_of_a_whole_pass(peak_memory) -> None:
    """Forward and backward together, as the allocator sees it."""
    field, x = Rotation(), torch.randn(64, 64, requires_grad=True)
    state = x.numel() * x.element_size()

    def peak(memory: str, num_steps: int) -> int:
        block = ThetaBlock(field, 0.5, num_steps, num_steps * 0.02, memory=memory, solver=rs.Anderson())
        return peak_memory(lambda: block(x).sum().backward())

    def growth(memory: str) -> float:
        return (peak(memory, 14) - peak(memory, 4)) / 10 / state

    assert growth("store") > 1.5
    assert growth("reversible") < 0.05


def test_memory_does_not_grow_with_solver_iterations() -> None:
    field, x = Rotation(), torch.randn(16, 64, requires_grad=True)

    def measure(rtol: float) -> tuple[int, float]:
        stopping = rs.Stopping(rtol=rtol, atol=0.0)
        block = ThetaBlock(field, 0.5, 4, 1.0, solver=rs.Picard(), stopping=stopping)
        steps = max(solution.steps.max().item() for solution in block.trajectory(x).solutions)
        return steps, kept_bytes(block, x)

    (few, small), (many, large) = measure(1e-2), measure(1e-12)
    assert many > 3 * few
    assert small == large


def gradients(block: Block, x: Tensor, t0: float | Tensor = 0.0) -> list[Tensor]:
    inputs = [x, *block.parameters()]
    inputs += [t0] if isinstance(t0, Tensor) and t0.requires_grad else []
    return torch.autograd.grad(block(x, t0).pow(2).sum(), inputs)


@pytest.mark.parametrize("form", ["midpoint", "trapezoid"])
@pytest.mark.parametrize("theta", [0.0, 0.3, 0.5, 1.0])
def test_policies_give_the_same_gradients(theta: float, form: str) -> None:
    field, x = Rotation(4, 8), torch.randn(6, 4, requires_grad=True)
    t0 = torch.linspace(0.0, 1.0, 6).requires_grad_()
    expected = gradients(ThetaBlock(field, theta, 8, 1.6, form, stopping=SHARP), x, t0)
    for memory in ("checkpoint", "reversible"):
        got = gradients(ThetaBlock(field, theta, 8, 1.6, form, stopping=SHARP, memory=memory), x, t0)
        for ours, reference in zip(got, expected, strict=True):
            torch.testing.assert_close(ours, reference, atol=1e-8, rtol=0)


@pytest.mark.parametrize("memory", ["checkpoint", "reversible"])
def test_policies_give_the_same_gradients_of_learned_numbers(memory: str) -> None:
    field, x = Rotation(4, 8), torch.randn(6, 4, requires_grad=True)

    def block(memory: str) -> ThetaBlock:
        horizon = nn.Parameter(torch.tensor(1.0))
        return ThetaBlock(field, 0.4, 5, horizon, memory=memory, learn_theta=True, stopping=SHARP)

    for ours, reference in zip(gradients(block(memory), x), gradients(block("store"), x), strict=True):
        torch.testing.assert_close(ours, reference, atol=1e-8, rtol=0)


@pytest.mark.parametrize("name", SCHEMES)
def test_policies_give_the_same_gradients_for_every_scheme(name: str) -> None:
    class Pair(Rotation):
        """Each half moves by the other."""

        split = fields.Hamiltonian.split
        join = fields.Hamiltonian.join

        def half(self, t: float | Tensor, y: Tensor) -> Tensor:
            return self.outer(torch.tanh(self.inner(y) + column(t, y)))

        velocity = force = half

        def forward(self, t: float | Tensor, y: Tensor) -> Tensor:
            q, p = self.split(y)
            return self.join(self.half(t, p), self.half(t, q))

    field, x = Pair(2, 4), torch.randn(3, 4, requires_grad=True)
    expected = gradients(Block(field, SCHEMES[name], 5, 0.5), x)
    for memory in POLICIES[1:] if name in ONE_STEP else POLICIES[1:2]:
        got = gradients(Block(field, SCHEMES[name], 5, 0.5, memory=memory), x)
        for ours, reference in zip(got, expected, strict=True):
            torch.testing.assert_close(ours, reference, atol=1e-8, rtol=0)


@pytest.mark.parametrize("memory", POLICIES)
def test_gradients_of_a_trajectory(memory: str) -> None:
    field, x = Rotation(4, 8), torch.randn(6, 4, requires_grad=True)
    weights = torch.randn(9, 6, 4)

    def gradients(memory: str) -> list[Tensor]:
        trajectory = ThetaBlock(field, 0.5, 8, 1.6, memory=memory, mode="sequential").trajectory(x)
        assert len(trajectory.solutions) == 8
        return torch.autograd.grad((weights * trajectory.states).sum(), [x, *field.parameters()])

    for ours, reference in zip(gradients(memory), gradients("store"), strict=True):
        torch.testing.assert_close(ours, reference, atol=1e-8, rtol=0)


@pytest.mark.parametrize("memory", ["checkpoint", "reversible"])
@pytest.mark.parametrize("solver", [rs.Newton(), rs.Anderson(), rs.Broyden()])
def test_a_step_is_made_again_without_a_solve(memory: str, solver: Solver) -> None:
    """The backward pass calls the field a few times per step, whatever the solves of the forward pass took."""
    calls = 0

    class Counted(Rotation):
        def forward(self, t: float | Tensor, y: Tensor) -> Tensor:
            nonlocal calls
            calls += 1
            return super().forward(t, y)

    field, x, steps = Counted(4, 8), torch.randn(6, 4, requires_grad=True), 8
    block = ThetaBlock(field, 0.5, steps, 1.6, solver=solver, memory=memory)
    y = block(x)
    forward, calls = calls, 0
    y.sum().backward()
    inverse = forward if memory == "reversible" else 0
    assert calls <= inverse + 3 * steps + 1


def test_dissipative_dynamics_are_refused_loudly() -> None:
    """Thirty layers with R = 1/3 bring all states to one: the way back is lost in rounding, and says so."""

    class Decay(fields.Field):
        rowwise = True

        def forward(self, t: float | Tensor, y: Tensor) -> Tensor:
            return -10 * (y - 1) + 0.1 * torch.sin(y)

    x = torch.randn(4, 3, requires_grad=True)
    block = ThetaBlock(Decay(), 0.5, 30, 3.0, memory="reversible")
    with pytest.raises(
        ReconstructionError, match=r"missed it by .* above the tolerance 1\.0e-06, .* memory='checkpoint'"
    ):
        block(x).sum().backward()
    tolerant = ThetaBlock(Decay(), 0.5, 30, 3.0, memory=Reversible(tolerance=1e12))
    tolerant(x).sum().backward()


def test_error_that_shrinks_again_on_the_way_back_is_noticed() -> None:
    """Growth, then decay: the first state is recovered well, the ones between are not, and gradients would be wrong."""

    class GrowthThenDecay(fields.Field):
        rowwise = True

        def forward(self, t: float | Tensor, y: Tensor) -> Tensor:
            return (14.0 if t < 1 else -14.0) * torch.sin(y - 1)

    x = (1 + 1e-6 * torch.randn(4, 3)).requires_grad_()
    field = GrowthThenDecay()
    block = ThetaBlock(field, 0.5, 20, 2.0, memory=Reversible(tolerance=1e-10))
    walk, state = block._pass(x, 0.0, block.field), block(x).detach()
    for n in reversed(range(20)):
        state = walk.back(n, state)
    torch.testing.assert_close(state, x.detach(), atol=1e-8, rtol=0)
    with pytest.raises(ReconstructionError):
        block(x).sum().backward()


def test_inverse_that_cannot_be_solved_is_refused() -> None:
    """At h lambda = -2 the midpoint step is the projection to zero, and nothing comes back from there."""

    class Pole(fields.Field):
        rowwise = True

        def forward(self, t: float | Tensor, y: Tensor) -> Tensor:
            return -2 * y + 0.01 * y**2

    x = torch.randn(4, 3, requires_grad=True)
    with pytest.raises(ReconstructionError):
        ThetaBlock(Pole(), 0.5, 3, 3.0, memory="reversible")(x).sum().backward()


def test_multistep_cannot_be_reversed() -> None:
    with pytest.raises(ValueError, match="cannot be reversed: take memory='checkpoint'"):
        Block(Rotation(4, 8), schemes.BDF2, memory="reversible")


@pytest.mark.parametrize("memory", ["checkpoint", "reversible"])
def test_gradients_that_would_be_lost_are_refused(memory: str) -> None:
    condition = torch.randn(6, 4, requires_grad=True)
    block = ThetaBlock(lambda t, y: torch.tanh(condition - y), 0.5, 3, memory=memory)
    y = block(torch.randn(6, 4, requires_grad=True))
    with pytest.raises(ValueError, match="recomputation would lose that gradient: take memory='store'"):
        y.sum().backward()


@pytest.mark.parametrize("memory", ["checkpoint", "reversible"])
def test_limits_of_recomputation_are_told(memory: str) -> None:
    field, x = Rotation(4, 8), torch.randn(6, 4, requires_grad=True)
    with pytest.raises(ValueError, match="no iterations to unroll"):
        ThetaBlock(field, 0.5, 2, solver=rs.Picard(), adjoint=rs.UnrolledAdjoint(), memory=memory)(x)
    with pytest.raises(ValueError, match=r"torch.func cannot look into a pass that is recomputed"):
        torch.func.jacrev(ThetaBlock(field, 0.5, 2, memory=memory))(x)
    (gradient,) = torch.autograd.grad(ThetaBlock(field, 0.5, 2, memory=memory)(x).sum(), x, create_graph=True)
    with pytest.raises(rs.errors.DerivativeOrderError, match="recomputed pass has first derivatives only"):
        gradient.sum().backward()
    with pytest.raises(ValueError, match="tolerance must be positive, got 0"):
        Reversible(tolerance=0)


@pytest.mark.parametrize("memory", ["checkpoint", "reversible"])
def test_backward_sees_the_weights_of_the_forward_pass(memory: str) -> None:
    """Of a functional call, which are no longer in the module when the backward pass runs."""
    field, x = Rotation(4, 8), torch.randn(6, 4)
    other = {name: torch.randn_like(p).mul(0.3).requires_grad_() for name, p in field.named_parameters()}
    named = {f"field.{name}": value for name, value in other.items()}

    def gradients(memory: str) -> list[Tensor]:
        block = ThetaBlock(field, 0.5, 4, memory=memory, stopping=SHARP)
        y = torch.func.functional_call(block, named, (x,))
        return torch.autograd.grad(y.pow(2).sum(), list(other.values()))

    for ours, reference in zip(gradients(memory), gradients("store"), strict=True):
        torch.testing.assert_close(ours, reference, atol=1e-8, rtol=0)


@pytest.mark.parametrize("memory", ["checkpoint", "reversible"])
def test_backward_sees_the_buffers_of_the_forward_pass(memory: str) -> None:
    class Scaled(Rotation):
        def __init__(self) -> None:
            super().__init__(4, 8)
            self.register_buffer("gain", torch.tensor(1.0))

        def forward(self, t: float | Tensor, y: Tensor) -> Tensor:
            return self.gain * super().forward(t, y)

    field, x = Scaled(), torch.randn(6, 4, requires_grad=True)
    (expected,) = torch.autograd.grad(ThetaBlock(field, 0.5, 4, stopping=SHARP)(x).pow(2).sum(), x)
    block = ThetaBlock(field, 0.5, 4, stopping=SHARP, memory=memory)
    y = block(x)
    field.gain = torch.tensor(3.0)
    torch.testing.assert_close(torch.autograd.grad(y.pow(2).sum(), x)[0], expected, atol=1e-8, rtol=0)
    y = block(x)
    field.gain.mul_(2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize("memory", POLICIES)
def test_normalised_weights_are_computed_once_and_get_their_gradients(memory: str) -> None:
    field = fields.MLP(4, 8, 1, bound=1.0)
    layers = [layer for layer in field.modules() if nn.utils.parametrize.is_parametrized(layer)]
    assert layers
    x = torch.randn(6, 4, requires_grad=True)
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    handles = [layer.parametrizations.weight[0].register_forward_hook(count) for layer in layers]
    # Picard sees the weights first, and without a graph.
    sharp = rs.Stopping(rtol=1e-13, atol=1e-14)
    block = ThetaBlock(field, 0.5, 5, memory=memory, solver=rs.Picard(), stopping=sharp)
    y = block(x)
    assert calls == len(layers)
    y.sum().backward()
    for handle in handles:
        handle.remove()
    assert all(parameter.grad is not None for parameter in field.parameters())
    got = [parameter.grad.clone() for parameter in field.parameters()]
    field.zero_grad()
    plain = x
    for n in range(5):
        interval = schemes.Interval(field, n * 0.2, 0.2, solve_options(None, sharp, None, "raise"))
        plain = schemes.Theta(0.5).step(interval, schemes.Carry((plain,))).state
    plain.sum().backward()
    torch.testing.assert_close(y, plain, atol=1e-9, rtol=0)
    for ours, parameter in zip(got, field.parameters(), strict=True):
        torch.testing.assert_close(ours, parameter.grad, atol=1e-8, rtol=0)


@pytest.mark.parametrize("memory", POLICIES)
def test_autocast_is_the_same_in_the_recomputation(memory: str) -> None:
    field, x = Rotation(8, 16).float(), torch.randn(6, 8, dtype=torch.float32)
    options = {"stopping": rs.Stopping(rtol=3e-2, atol=1e-2), "memory": memory}
    block = ThetaBlock(field, 0.5, 3, **options)
    dtypes = set()
    field.inner.register_forward_hook(lambda module, inputs, output: dtypes.add(output.dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = block(x)
    y.float().sum().backward()
    assert dtypes == {torch.bfloat16}
