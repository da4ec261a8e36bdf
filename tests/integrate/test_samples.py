"""Samples: each has its own steps, span and direction, and none depends on the others."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import resolvent as rs
from resolvent.schemes import tableaux

SCHEMES = {"auto": "auto", "TSITOURAS5": tableaux.TSITOURAS5, "KVAERNO5": tableaux.KVAERNO5, "RADAU5": tableaux.RADAU5}

pytestmark = pytest.mark.slow


class VanDerPol(rs.fields.Field):
    """Stiff or not, as mu says; `rowwise`, or not, as it is told."""

    autonomous = True

    def __init__(self, mu: float, rowwise: bool) -> None:
        super().__init__()
        self.mu, self.rowwise = mu, rowwise

    def forward(self, t: float | Tensor, y: Tensor) -> Tensor:
        return torch.stack([y[:, 1], self.mu * (1 - y[:, 0] ** 2) * y[:, 1] - y[:, 0]], 1)


STARTS = torch.tensor([[2.0, 0.0], [0.5, 1.0], [-1.0, 3.0], [0.01, 0.0]], dtype=torch.float64)


@pytest.mark.parametrize("rowwise", [True, False])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_sample_alone_equals_itself_in_a_batch(scheme: str, rowwise: bool) -> None:
    field = VanDerPol(8.0, rowwise)
    times = torch.linspace(0.0, 1.5, 4)
    together = rs.odeint(field, STARTS, times, SCHEMES[scheme])
    for i in range(len(STARTS)):
        alone = rs.odeint(field, STARTS[i : i + 1], times, SCHEMES[scheme])
        torch.testing.assert_close(alone.states[:, 0], together.states[:, i], rtol=1e-11, atol=1e-12)
        assert alone.accepted[0] == together.accepted[i]
        assert alone.rejected[0] == together.rejected[i]
    assert together.accepted.unique().numel() > 1, "samples that differ choose different steps"


@pytest.mark.parametrize("rowwise", [True, False])
def test_every_sample_may_have_its_own_span_and_direction(rowwise: bool) -> None:
    field = VanDerPol(2.0, rowwise)
    times = torch.stack([torch.linspace(*span, 5) for span in ((0.0, 1.0), (2.0, 9.0), (1.0, 0.8), (0.0, 1e-3))], 1)
    together = rs.odeint(field, STARTS, times)
    assert together.times.shape == (5, 4)
    torch.testing.assert_close(together.reached, times[-1])
    for i in range(4):
        alone = rs.odeint(field, STARTS[i : i + 1], times[:, i])
        torch.testing.assert_close(alone.states[:, 0], together.states[:, i], rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_back_in_time_is_where_it_came_from(scheme: str) -> None:
    field = VanDerPol(1.0, True)
    there = rs.odeint(field, STARTS, [0.0, 0.7, 1.0], SCHEMES[scheme], rtol=1e-8, atol=1e-10)
    back = rs.odeint(field, there.states[-1], [1.0, 0.7, 0.0], SCHEMES[scheme], rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(back.states.flip(0), there.states, rtol=1e-5, atol=1e-6)


def test_the_first_state_is_the_one_given() -> None:
    states = rs.odeint(VanDerPol(1.0, True), STARTS, [0.0, 1.0]).states
    assert torch.equal(states[0], STARTS)


def test_states_do_not_depend_on_the_times_asked_for() -> None:
    """Steps are chosen without a look at the output, but for the last one."""
    field = VanDerPol(3.0, True)
    few = rs.odeint(field, STARTS, [0.0, 4.0])
    many = rs.odeint(field, STARTS, torch.linspace(0.0, 4.0, 101))
    assert torch.equal(few.states[-1], many.states[-1])
    assert torch.equal(few.accepted, many.accepted)


def test_states_of_any_shape() -> None:
    y0 = torch.randn(3, 2, 2, 2)
    matrix = torch.randn(8, 8)

    def field(t: Tensor, y: Tensor) -> Tensor:
        return (y.flatten(1) @ matrix.T).reshape(y.shape)

    for scheme in SCHEMES.values():
        states = rs.odeint(field, y0, [0.0, 0.5, 1.0], scheme, rtol=1e-8).states
        exact = (y0.flatten(1) @ torch.matrix_exp(matrix).T).reshape(y0.shape)
        torch.testing.assert_close(states[-1], exact, rtol=1e-5, atol=1e-6)


def test_single_precision() -> None:
    y0 = STARTS.float()
    for scheme in SCHEMES.values():
        result = rs.odeint(VanDerPol(5.0, True), y0, [0.0, 1.0, 2.0], scheme)
        exact = rs.odeint(VanDerPol(5.0, True), STARTS, [0.0, 1.0, 2.0], scheme)
        assert result.states.dtype == torch.float32
        torch.testing.assert_close(result.states.double(), exact.states, rtol=5e-3, atol=5e-3)


@given(
    shape=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    batch=st.integers(1, 4),
    start=st.floats(-5, 5),
    span=st.floats(1e-3, 3),
    backwards=st.booleans(),
    count=st.integers(2, 6),
)
def test_decay_over_any_span(
    shape: list[int], batch: int, start: float, span: float, backwards: bool, count: int
) -> None:
    """y' = -y sin(t) has the solution y0 exp(cos t - cos t0)."""
    y0 = 1 + torch.rand(batch, *shape)
    times = torch.linspace(start, start - span if backwards else start + span, count)

    def field(t: Tensor, y: Tensor) -> Tensor:
        return -y * torch.sin(t).reshape(-1, *(1,) * len(shape))

    states = rs.odeint(field, y0, times).states
    factors = torch.exp(torch.cos(times) - torch.cos(times[0])).reshape(-1, *(1,) * y0.dim())
    torch.testing.assert_close(states, factors * y0, rtol=5e-5, atol=0)


def test_components_have_tolerances_of_their_own() -> None:
    """A component that is not to be resolved does not shorten the steps."""

    def field(t: Tensor, y: Tensor) -> Tensor:
        return torch.stack([-y[:, 0], 1e-3 * torch.sin(60 * t)], 1)

    y0 = torch.tensor([[1.0, 0.0]])
    strict = rs.odeint(field, y0, [0.0, 5.0], tableaux.TSITOURAS5, rtol=1e-6, atol=1e-9)
    loose = rs.odeint(field, y0, [0.0, 5.0], tableaux.TSITOURAS5, rtol=1e-6, atol=torch.tensor([1e-9, 1e-1]))
    assert loose.accepted < 0.3 * strict.accepted
    torch.testing.assert_close(loose.states[-1, 0, 0], torch.exp(torch.tensor(-5.0)), rtol=1e-4, atol=0)


def test_a_first_step_that_is_given_is_made() -> None:
    field = VanDerPol(1.0, True)
    short = rs.odeint(field, STARTS, [0.0, 1.0], tableaux.TSITOURAS5, first_step=1e-6)
    long = rs.odeint(field, STARTS, [0.0, 1.0], tableaux.TSITOURAS5, first_step=0.02)
    assert (short.accepted > long.accepted).all()


@pytest.mark.parametrize("rowwise", [True, False])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_everything_is_made_where_the_states_are(scheme: str, rowwise: bool) -> None:
    """With another default device, whatever does not ask for that of the states fails at once."""
    k = torch.tensor([3.0, 2.0], requires_grad=True)

    def field(t: Tensor, y: Tensor) -> Tensor:
        return torch.stack([-k[0] * y[:, 0] + y[:, 1] * t, -k[1] * y[:, 1]], 1)

    field.rowwise = rowwise  # type: ignore[attr-defined]
    times, jumps = torch.tensor([0.0, 0.5, 1.0]), rs.integrate.Jumps([0.3], lambda t, y: y + 0.1 * k[0])
    options = {"rtol": 1e-3, "jumps": jumps, "event": lambda t, y: y[:, 1] - 0.5}
    before = rs.odeint(field, STARTS, times, SCHEMES[scheme], **options)  # type: ignore[arg-type]
    with torch.device("meta"):
        after = rs.odeint(field, STARTS, times, SCHEMES[scheme], **options)  # type: ignore[arg-type]
        (gradient,) = torch.autograd.grad(after.final.sum() + after.reached.sum(), k)
    assert torch.equal(after.final, before.final)
    assert gradient.isfinite().all()


WRONG = {
    "y0 must be a tensor": {"y0": [[1.0, 0.0]]},
    "y0 must be a tensor .*, got torch.float16": {"y0": STARTS.half()},
    "a single state is a batch of one": {"y0": STARTS[0]},
    "y0 must be finite, but 1 ": {"y0": torch.tensor([[1.0, torch.nan]])},
    r"times must be \(count,\)": {"times": [1.0]},
    r"times must be \(count,\) or \(count, batch\)": {"times": torch.zeros(3, 2)},
    "increase or decrease strictly": {"times": [0.0, 1.0, 1.0]},
    "increase or decrease strictly .* sample 2": {"times": torch.tensor([[0.0, 0, 0, 0], [1, 1, 0, 1]])},
    "rtol must be a number between": {"rtol": 1e-20},
    "atol must be a positive number": {"atol": 0.0},
    "atol must be a positive number, or a tensor": {"atol": torch.ones(3)},
    "max_steps must be a whole number": {"max_steps": 0},
    "min_step must be a positive number": {"min_step": -1.0},
    "first_step must be a positive number": {"first_step": 0.0},
    "memory must be 'store', 'checkpoint' or 'adjoint'": {"memory": "reversible"},
    "matrix must be True, False": {"matrix": "dense"},
    "derivatives counts those": {"derivatives": 0},
    "on_failure must be one of": {"on_failure": "pray"},
    "field must be callable": {"field": 3},
    "field is called with the two arguments": {"field": lambda y: y},
    "field must map states": {"field": rs.Autonomous(lambda y: y[:, :1], rowwise=True)},
    "field must keep the dtype": {"field": rs.Autonomous(lambda y: y.float())},
    "jumps must be times": {"jumps": torch.zeros(2, 3)},
    "jumps must be numbers": {"jumps": [torch.nan]},
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_arguments_are_refused(message: str) -> None:
    arguments = {"field": VanDerPol(1.0, True), "y0": STARTS, "times": [0.0, 1.0]} | WRONG[message]
    with pytest.raises(ValueError, match=message):
        rs.odeint(**arguments)  # type: ignore[arg-type]


def test_a_field_that_draws_random_numbers_is_refused() -> None:
    field = rs.Autonomous(torch.nn.Sequential(torch.nn.Linear(2, 20), torch.nn.Dropout(), torch.nn.Linear(20, 2)))
    with pytest.raises(ValueError, match="two values for the same time"):
        rs.odeint(field, STARTS, [0.0, 1.0])
    assert rs.odeint(field.eval(), STARTS, [0.0, 1.0]).done.all()


def test_normalised_weights_are_computed_once() -> None:
    """In training mode a power iteration moves them whenever they are computed."""
    torch.manual_seed(0)
    field = rs.fields.MLP(2, 8, 2, activation=torch.nn.Tanh(), bound=1.0).train()
    trained = [weight for weight in field.parameters() if weight.requires_grad]
    for scheme in SCHEMES.values():
        result = rs.odeint(field, STARTS, [0.0, 1.0], scheme)
        assert result.done.all()
        gradients = torch.autograd.grad(result.states[-1].sum(), trained)
        assert all(bool(gradient.isfinite().all()) for gradient in gradients)
        assert any(bool((gradient != 0).any()) for gradient in gradients)


@pytest.mark.parametrize("batch", [2, 3])
def test_a_field_for_one_time_is_refused(batch: int) -> None:
    """Whether it fails, or multiplies columns by the times of samples."""
    with pytest.raises(ValueError, match="time for each sample"):
        rs.odeint(lambda t, y: torch.sin(t) * y, torch.rand(batch, 2), torch.tensor([[0.0], [1.0]]).expand(2, batch))
