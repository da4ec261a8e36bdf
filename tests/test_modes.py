"""Every public function and module under no_grad, inference mode, autocast and vmap: equal to itself outside, or our
own error."""

import dataclasses
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import resolvent as rs
from examples_of_use import Example
from public_names import examples

LIBRARY = Path(rs.__file__).parent
CASES = examples()
# What is compared differs by rounding and by the tolerance of its solves, and by what autocast rounds.
TOLERANCE = {torch.float64: 1e-8, torch.float32: 4 * torch.finfo(torch.bfloat16).eps}
SLOW = {"blocks.export", "plotting.save", "plotting.theta_regions", "analysis.numerical_range: by products"}


def leaves(result: Any) -> list[Tensor]:
    """The numbers in a result, whatever it consists of."""
    if isinstance(result, Tensor):
        return [result]
    if isinstance(result, bool | int | float | complex):
        return [torch.tensor(result)]
    if dataclasses.is_dataclass(result):
        result = [getattr(result, field.name) for field in dataclasses.fields(result)]
    if isinstance(result, dict):
        result = list(result.values())
    assert result is None or isinstance(result, str | list | tuple), f"no numbers are known in {result!r}"
    return [leaf for part in result or () if not isinstance(part, str) for leaf in leaves(part)]


def build(example: Example) -> Callable[[Tensor], list[Tensor]]:
    """The call of an example, always with the same weights and the same random numbers."""
    torch.manual_seed(0)
    call = example.build()

    def seeded(x: Tensor) -> list[Tensor]:
        torch.manual_seed(1)
        return leaves(call(x))

    return seeded


def make_input(example: Example) -> Tensor:
    return torch.randn(example.shape, generator=torch.Generator().manual_seed(2))


def assert_same(got: list[Tensor], expected: list[Tensor], tolerance: float) -> None:
    for a, e in zip(got, expected, strict=True):
        assert a.shape == e.shape
        if not (e.is_floating_point() or e.is_complex()):
            assert torch.equal(a, e)
            continue
        assert (a.isfinite() == e.isfinite()).all()
        finite = e.isfinite()
        e, a = e[finite].detach(), a[finite].detach()
        scale = max(1e-3, e.abs().max().item()) if e.numel() else 1.0
        assert ((a - e).abs() <= tolerance * scale).all(), (a, e)


def is_own(error: BaseException) -> bool:
    """Whether the library itself raised it."""
    trace = error.__traceback__
    assert trace is not None
    while trace.tb_next is not None:
        trace = trace.tb_next
    inside = Path(trace.tb_frame.f_code.co_filename).is_relative_to(LIBRARY)
    return inside and isinstance(error, ValueError | rs.errors.ResolventError)


def own_error_or(call: Callable[[Tensor], list[Tensor]], x: Tensor) -> list[Tensor] | None:
    """What the call returns, or None if the library refuses it; any other error is a failure."""
    try:
        return call(x)
    except Exception as error:
        if is_own(error):
            return None
        raise


@cache
def outside(name: str, dtype: torch.dtype, factor: float = 1.0) -> list[Tensor]:
    """The result in no special mode."""
    assert dtype == torch.get_default_dtype()
    return build(CASES[name])(factor * make_input(CASES[name]))


NAMES = [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in CASES]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_autograd_the_results_are_the_same(name: str, mode: Callable[[], Any]) -> None:
    call, x = build(CASES[name]), make_input(CASES[name])
    with mode():
        got = own_error_or(call, x)
    assert got is not None, "nothing may be refused here"
    assert_same(got, outside(name, torch.float64), TOLERANCE[torch.float64])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("made", ["input", "weights and input"])
def test_tensors_made_in_inference_mode(name: str, made: str) -> None:
    """Autograd refuses such tensors for good, also where the solvers need it."""
    call = build(CASES[name])
    with torch.inference_mode():
        call = build(CASES[name]) if made == "weights and input" else call
        got = own_error_or(call, make_input(CASES[name]))
    if got is not None:
        assert_same(got, outside(name, torch.float64), TOLERANCE[torch.float64])


@pytest.mark.parametrize("name", NAMES)
def test_autocast_rounds_and_no_more(name: str) -> None:
    torch.set_default_dtype(torch.float32)  # Autocast leaves float64 alone.
    call, x = build(CASES[name]), make_input(CASES[name])
    with torch.autocast("cpu", torch.bfloat16):
        got = own_error_or(call, x)
    if got is not None:
        assert_same(got, outside(name, torch.float32), TOLERANCE[torch.float32])


@pytest.mark.parametrize("name", NAMES)
def test_vmap_equals_a_loop_or_is_refused(name: str) -> None:
    call, x = build(CASES[name]), make_input(CASES[name])
    inputs = torch.stack([x, 0.5 * x])
    got = own_error_or(torch.func.vmap(call), inputs)
    if got is None:  # What draws random numbers is refused until vmap is told how the copies share them.
        got = own_error_or(torch.func.vmap(call, randomness="same"), inputs)
    if got is not None:
        alone = [outside(name, torch.float64, factor) for factor in (1.0, 0.5)]
        assert_same(got, [torch.stack(copies) for copies in zip(*alone, strict=True)], TOLERANCE[torch.float64])


def test_a_public_name_without_an_example_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rs.analysis, "__all__", [*rs.analysis.__all__, "new"])
    monkeypatch.setattr(rs.analysis, "new", make_input, raising=False)
    monkeypatch.setattr(make_input, "__module__", "resolvent.analysis.new")
    with pytest.raises(LookupError, match=r"add an example of analysis\.new to"):
        examples()
