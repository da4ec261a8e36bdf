"""Certified Lipschitz constants of theta blocks and networks, and certified radii of classifiers."""

import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from resolvent.equation.modes import refuse_transforms
from resolvent.fields import Field
from resolvent.fields.activations import is_activation, slopes_of
from resolvent.spectral import Disc, norm_bound, schur_bound

Shape = tuple[int, ...]


def theta_lipschitz(disc: Disc, theta: float, h: float, num_steps: int = 1, form: str = "midpoint") -> float:
    """Bounds the Lipschitz constant of theta steps from a disc that contains the slopes of the field.

    Let R(z) = (1 + (1-theta) z) / (1 - theta z) be the stability function, [a, b] the diameter of the disc of slopes,
    and theta h b < 1. A step of the midpoint form multiplies a difference by exactly |R(h w)| for a w in the disc, so

        Lip(midpoint step) <= max(|R(h a)|, |R(h b)|)

    and this is sharp. The trapezoid form is an explicit step B followed by a resolvent J, while the midpoint form M is
    first J and then B; so n steps are J M^(n-1) B, with Lip(J) <= 1/(1 - theta h b), and the bound is

        Lip(n trapezoid steps) <= Lip(J) Lip(M)^(n-1) Lip(B)

    Arguments:
        disc: contains the slopes of the field, see `Field.disc`. In the trapezoid form with more than one step the
            field must be the same at the end of a step and at the beginning of the next.
        theta: in [0, 1].
        h: step, > 0.
        num_steps: number of steps.
        form: "midpoint" or "trapezoid".

    Reference: Hairer and Wanner, Solving Ordinary Differential Equations II, section IV.12, for contractivity.
    """
    if not (0 <= theta <= 1 and 0 < h < math.inf and num_steps >= 1):
        raise ValueError(f"need 0 <= theta <= 1, h > 0 and num_steps >= 1, got {theta}, {h} and {num_steps}")
    if theta * h * disc.high >= 1:
        raise ValueError(
            f"theta*h*high = {theta * h * disc.high:.6g} >= 1: the slopes of the field can reach the pole of the "
            f"stability function, and no bound exists. Keep the slopes of the field below {1 / (theta * h):.4g}, or "
            "make the step smaller"
        )
    midpoint = max(abs(_stability(theta, h * end)) for end in (disc.low, disc.high))
    if form == "midpoint":
        return midpoint**num_steps
    if form != "trapezoid":
        raise ValueError(f"form must be 'midpoint' or 'trapezoid', got {form!r}")
    explicit = max(abs(1 + (1 - theta) * h * end) for end in (disc.low, disc.high))
    return explicit * midpoint ** (num_steps - 1) / (1 - theta * h * disc.high)


def lipschitz_bound(model: nn.Module, input_shape: Sequence[int] | None = None) -> float:
    """Computes a certified bound on the l2 Lipschitz constant of a theta block or of a whole network.

    A network is an nn.Sequential, possibly nested, of theta blocks, linear and convolutional layers, activations,
    pooling, batch normalisation and dropout in evaluation mode, and reshaping; its bound is the product of theirs. The
    bound holds for exact arithmetic and exactly solved steps, with the current weights.

    Arguments:
        model: the block or network.
        input_shape: shape of one sample, without the batch; needed for convolutions and pooling.
    """
    refuse_transforms("lipschitz_bound")
    bound, _ = _bound(model, None if input_shape is None else tuple(input_shape))
    return bound


def certified_radius(model: nn.Module, x: Tensor, lipschitz: float | None = None) -> Tensor:
    """Returns for each sample the l2 distance within which the class, the largest output, cannot change.

        radius = (largest output - second largest) / (sqrt(2) L)

    Two outputs move towards each other by at most sqrt(2) L |dx|.

    Arguments:
        model: a classifier (batch, *shape) -> (batch, classes).
        x: samples, (batch, *shape).
        lipschitz: a Lipschitz constant L of the model; None takes `lipschitz_bound`.

    Returns:
        (batch,), zero if the two largest outputs are equal.

    Reference: Tsuzuku, Sato and Sugiyama, Lipschitz-margin training, 2018.
    """
    L = lipschitz_bound(model, tuple(x.shape[1:])) if lipschitz is None else lipschitz
    with torch.no_grad():
        scores = model(x)
    if scores.ndim != 2 or scores.shape[1] < 2:
        raise ValueError(f"a classifier gives (batch, classes) with two classes or more, got {tuple(scores.shape)}")
    best = scores.topk(2, dim=1).values
    return cast(Tensor, (best[:, 0] - best[:, 1]) / (math.sqrt(2) * L))


def _stability(theta: float, z: float) -> float:
    return (1 + (1 - theta) * z) / (1 - theta * z)


def _bound(module: nn.Module, shape: Shape | None) -> tuple[float, Shape | None]:
    """The Lipschitz constant of a module on samples of a shape, and the shape of its outputs."""
    if _is(module, nn.Sequential):
        return _sequential_bound(module, shape)
    if _is_theta_block(module):
        return _block_bound(module), shape
    if is_activation(module):
        return slopes_of(module).lipschitz, shape
    for kinds, rule in _RULES:
        if _is(module, *kinds):
            return rule(module, shape), _output_shape(module, shape)
    raise ValueError(
        f"no Lipschitz constant is known for {type(module).__name__}: build the network as nn.Sequential of theta "
        "blocks, linear and convolutional layers, activations and pooling, or give certified_radius a constant"
    )


def _is(module: nn.Module, *kinds: type[nn.Module]) -> bool:
    """Whether a module has the forward pass of one of these kinds; a subclass with its own forward pass does not."""
    return any(isinstance(module, kind) and type(module).forward is kind.forward for kind in kinds)


def _sequential_bound(modules: Any, shape: Shape | None) -> tuple[float, Shape | None]:
    product = 1.0
    for module in modules:
        bound, shape = _bound(module, shape)
        product *= bound
    return product, shape


def _output_shape(module: nn.Module, shape: Shape | None) -> Shape | None:
    if shape is None:
        return None
    like = next(module.parameters(), torch.empty(0))
    with torch.no_grad():
        return tuple(module(torch.zeros(1, *shape, dtype=like.dtype, device=like.device)).shape[1:])


def _is_theta_block(module: nn.Module) -> bool:
    return all(hasattr(module, name) for name in ("field", "theta", "num_steps", "horizon", "form"))


def _block_bound(block: Any) -> float:
    field, num_steps = block.field, int(block.num_steps)
    if not isinstance(field, Field):
        raise ValueError(
            f"nothing is known of the slopes of {type(field).__name__}: wrap it in Autonomous(module, lipschitz=...)"
        )
    theta, horizon = (float(torch.as_tensor(value).detach()) for value in (block.theta, block.horizon))
    if getattr(block, "times", None) is not None:
        steps = torch.as_tensor(block.times).detach().double().diff().tolist()
        return math.prod(theta_lipschitz(field.disc(), theta, h, 1, block.form) for h in steps)
    h = horizon / num_steps
    if block.form == "trapezoid" and not field.autonomous:
        # If the field changes between two steps, the factors of neighbouring steps cannot be combined.
        return theta_lipschitz(field.disc(), theta, h, 1, block.form) ** num_steps
    return theta_lipschitz(field.disc(), theta, h, num_steps, block.form)


def _one(module: nn.Module, shape: Shape | None) -> float:
    return 1.0


def _linear(module: nn.Module, shape: Shape | None) -> float:
    return norm_bound(module, shape).value


def _average(module: nn.Module, shape: Shape | None) -> float:
    return schur_bound(module, _needed(module, shape))


def _maximum(module: Any, shape: Shape | None) -> float:
    """The root of the number of windows that contain an entry: a maximum changes at most as much as its entries."""
    dims = len(_needed(module, shape)) - 1
    kernel, stride, dilation = (
        value if isinstance(value, tuple) else (value,) * dims
        for value in (module.kernel_size, module.stride, module.dilation)
    )
    windows = (math.ceil(k * math.gcd(d, s) / s) for k, s, d in zip(kernel, stride, dilation, strict=True))
    return math.sqrt(math.prod(windows))


def _dropout(module: nn.Module, shape: Shape | None) -> float:
    _refuse_training(module)
    return 1.0


def _batch_norm(module: Any, shape: Shape | None) -> float:
    _refuse_training(module)
    if module.running_var is None:
        raise ValueError(f"{type(module).__name__} without running statistics has no Lipschitz constant")
    gain = torch.rsqrt(module.running_var + module.eps)
    gain = gain if module.weight is None else gain * module.weight
    return float(gain.detach().abs().max())


def _refuse_training(module: nn.Module) -> None:
    if module.training:
        raise ValueError(f"{type(module).__name__} has no fixed Lipschitz constant while it trains: call model.eval()")


def _needed(module: nn.Module, shape: Shape | None) -> Shape:
    if shape is None:
        raise ValueError(f"the Lipschitz constant of {type(module).__name__} depends on its input: give input_shape")
    return shape


_RULES: tuple[tuple[tuple[type[nn.Module], ...], Callable[[nn.Module, Shape | None], float]], ...] = (
    ((nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d), _linear),
    ((nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d), _linear),
    ((nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d), _average),
    ((nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d), _average),
    ((nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d), _maximum),
    ((nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d), _dropout),
    ((nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d), _batch_norm),
    ((nn.Flatten, nn.Unflatten), _one),
)
