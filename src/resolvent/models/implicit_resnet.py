"""A small residual network for images whose residual layers are theta layers."""

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from resolvent.blocks import ThetaBlock, Trajectory
from resolvent.equation.modes import refuse_transforms
from resolvent.equation.stopping import Stopping
from resolvent.fields import Piecewise, initialise
from resolvent.models.layer_field import LayerField
from resolvent.spectral import spectral_norm

Size = tuple[int, int]

ARCHITECTURES = {"paper": (1, 2, 4, 8), "authors": (1, 2, 4)}
"""The channels of each stage, as multiples of those of the first."""


class ForwardResult(NamedTuple):
    """The result of `ImplicitResNet.forward_with_trajectories`.

    Attributes:
        logits: (batch, num_classes).
        trajectories: of the stages, in order.
    """

    logits: Tensor
    trajectories: tuple[Trajectory, ...]


class ImplicitResNet(nn.Sequential):
    """Stages of theta layers between convolutions, average pooling and a linear map to the classes.

    It is an nn.Sequential, so `rs.analysis.lipschitz_bound` and `certified_radius` support it. Make one with
    `implicit_resnet18`.

    Arguments:
        modules: by name.
        input_shape: of one image, (channels, height, width).
    """

    def __init__(self, modules: OrderedDict[str, nn.Module], input_shape: tuple[int, int, int]) -> None:
        super().__init__(modules)
        self.input_shape = input_shape
        # A hook, not a `forward`: the certificates support only modules with the forward of nn.Sequential.
        self.register_forward_pre_hook(_check_images)

    @property
    def stages(self) -> tuple[ThetaBlock, ...]:
        """The blocks of theta layers; the field of each is `Piecewise`, with one piece per layer."""
        return tuple(module for module in self if isinstance(module, ThetaBlock))

    def forward_with_trajectories(self, images: Tensor) -> ForwardResult:
        """The logits and the trajectories of the stages, e.g. for `rs.regularizers.TrajectoryPenalty`:

        logits, trajectories = model.forward_with_trajectories(images)
        penalty = sum(penalise(stage.field, t).total for stage, t in zip(model.stages, trajectories))
        """
        _check_images(self, (images,))
        state, trajectories = images, []
        for module in self:
            if isinstance(module, ThetaBlock):
                trajectories.append(module.trajectory(state))
                state = trajectories[-1].states[-1]
            else:
                state = module(state)
        return ForwardResult(state, tuple(trajectories))


def implicit_resnet18(
    theta: float = 0.5,
    channels: int = 8,
    num_classes: int = 10,
    input_shape: Sequence[int] = (1, 28, 28),
    *,
    architecture: str = "paper",
    normalization: str = "free",
    low: float = -3.0,
    high: float = 1.0,
    learn_shift: bool = False,
    scale: float | None = None,
    learn_scale: bool | None = None,
    per_channel: bool = False,
    always: bool = False,
    power_iterations: int = 1,
    transition_bound: float | None = None,
    layers: int = 2,
    steps: int = 1,
    step_size: float = 1.0,
    init: str = "xavier",
    stem_gain: float = 0.3,
    stopping: Stopping | None = None,
    **block: Any,
) -> ImplicitResNet:
    """A pre-activation residual network of theta layers, y = x + h F((1 - theta) x + theta y).

        images -> conv 7x7, stride 2 -> stage -> conv 3x3, stride 2 -> stage -> ... -> average -> linear -> logits

    The default is the network that was most robust to noise among those with implicit layers, F = G, theta = 1/2. Train
    it with weight decay and `rs.regularizers.Sensitivity`, see the page on models.

    A stage is a `ThetaBlock` of two layers, each with its own weights, around G(y) = K_2 * relu(K_1 * relu(y)), or of
    gradient flows F(y) = -K^T relu(K y + b), K a convolution to twice the channels, which has as many weights and
    biases. The number of parameters does not depend on theta. It depends on the normalisation only through the affine
    maps of batch norms, four numbers per channel in each layer, and through S, if it is learned.

    A gradient flow is monotone, <F(u) - F(v), u - v> <= 0, for all weights. Hence its implicit layers have exactly one
    solution for every h, and with theta >= 1/2 they do not move states apart; `rs.analysis.lipschitz_bound` uses this.

    Arguments:
        theta: of all layers; 0 is the explicit residual network.
        channels: of the first stage.
        num_classes: the number of classes.
        input_shape: of one image, (channels, height, width); the network accepts no other.
        architecture: "paper": four stages, with channels times 1, 2, 4, 8. "authors": a 3x3 max-pooling with stride 2
            after the first convolution, and three stages, with channels times 1, 2, 4, as in the authors' programs.
        normalization: "bounded": F = c y + r S*G, the paper's F^{low,high}, with the norm of each convolution (of the
            operator, not of the reshaped weight) at most 1. "free": F = S*G without normalisation and shift; with
            theta = 0 the usual residual network. "batch": F = S*G with batch normalisation before each activation,
            only for theta = 0. "gradient": F = -K^T relu(K y + b), with K free. "bounded-gradient": the same with the
            norm of K at most 1, which makes explicit layers with h <= 2 non-expansive, too.
        low, high: limits of the spectrum of a bounded field; c = (low + high)/2, r = (high - low)/2.
        learn_shift: whether c is learned, see `rs.fields.Bounded`.
        scale: initial value of S, 0.1 by default, or its constant value, 1 by default, if it is not learned. Gradient
            flows have no S: `scale` and `per_channel` then raise, and `learn_scale` has no effect.
        learn_scale: whether S, the sigmoid of parameters, is learned; None learns that of bounded fields and of those
            with batch normalisation.
        per_channel: S has one entry per channel instead of one per pixel and channel.
        always: whether to divide convolutions of bounded fields by their norms also if these are below 1.
        power_iterations: see `rs.spectral.spectral_norm`.
        transition_bound: if given, an upper limit for the norms of the convolutions between the stages and of the
            linear map.
        layers: the number of layers per stage.
        steps: the number of steps per layer; they share its weights.
        step_size: h, of each step.
        init: see `rs.fields.initialise`.
        stem_gain: multiplies the initial weights of the first convolution; 1 is the usual initialisation.
        stopping: for the solves; None takes a relative tolerance of 1e-3, which is enough for training in float32.
        block: solver, adjoint, memory, on_failure, guess, reuse, form and learn_theta, as for `ThetaBlock`.

    Reference: Reshniak & Webster, Robust learning with implicit residual networks, 2021, example 4; He et al., Identity
    mappings in deep residual networks, 2016; Ruthotto & Haber, Deep neural networks motivated by partial differential
    equations, 2020, for gradient flows.
    """
    refuse_transforms("implicit_resnet18")
    if architecture not in ARCHITECTURES:
        raise ValueError(f"architecture must be one of {tuple(ARCHITECTURES)}, got {architecture!r}.")
    if normalization == "batch" and (theta != 0 or block.get("learn_theta")):
        raise ValueError(
            f"batch normalisation in F needs theta = 0, got theta={theta}: it couples the samples of a batch, "
            'and changes between two evaluations of a solve. Take normalization="bounded" or "free".'
        )
    for name, value in {"channels": channels, "num_classes": num_classes, "layers": layers, "steps": steps}.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{name} must be a whole number, 1 or more, got {value!r}.")
    if not (math.isfinite(stem_gain) and stem_gain > 0):
        raise ValueError(f"stem_gain must be a positive number, got {stem_gain}.")
    shape = _image_shape(input_shape)
    if learn_scale is None:
        learn_scale = normalization != "free"
    field = LayerField(
        normalization, low, high, learn_shift, scale, learn_scale, per_channel, always, power_iterations, init
    )
    stopping = Stopping(rtol=1e-3) if stopping is None else stopping
    horizon = layers * steps * step_size

    def stage(width: int, size: Size) -> ThetaBlock:
        fields = Piecewise([field(width, size) for _ in range(layers)])
        return ThetaBlock(fields, theta, layers * steps, horizon, stopping=stopping, **block)

    widths = [channels * factor for factor in ARCHITECTURES[architecture]]
    modules, transitions = _assemble(shape, widths, num_classes, architecture == "authors", stage)
    initialise([module for module, _ in transitions], init)
    with torch.no_grad():
        modules["stem"].get_parameter("weight").mul_(stem_gain)
    if transition_bound is not None:
        for module, taken in transitions:
            spectral_norm(module, taken, transition_bound, power_iterations)
    return ImplicitResNet(modules, shape)


def _assemble(
    shape: tuple[int, int, int],
    widths: Sequence[int],
    num_classes: int,
    pool: bool,
    stage: Callable[[int, Size], ThetaBlock],
) -> tuple[OrderedDict[str, nn.Module], list[tuple[nn.Module, tuple[int, ...]]]]:
    """The modules by name, and the modules between the stages with their input shapes."""
    modules: OrderedDict[str, nn.Module] = OrderedDict()
    modules["stem"] = nn.Conv2d(shape[0], widths[0], 7, stride=2, padding=3)
    transitions: list[tuple[nn.Module, tuple[int, ...]]] = [(modules["stem"], shape)]
    size = _halved(shape[1:])
    if pool:
        modules["pool"] = nn.MaxPool2d(3, stride=2, padding=1)
        size = _halved(size)
    modules["stage1"] = stage(widths[0], size)
    for n, (narrow, wide) in enumerate(pairwise(widths), start=2):
        modules[f"down{n}"] = nn.Conv2d(narrow, wide, 3, stride=2, padding=1)
        transitions.append((modules[f"down{n}"], (narrow, *size)))
        size = _halved(size)
        modules[f"stage{n}"] = stage(wide, size)
    modules["average"], modules["flatten"] = nn.AdaptiveAvgPool2d(1), nn.Flatten()
    modules["head"] = nn.Linear(widths[-1], num_classes)
    transitions.append((modules["head"], (widths[-1],)))
    return modules, transitions


def _halved(size: Sequence[int]) -> Size:
    """Output size of a stride-2 convolution padded by half its kernel."""
    height, width = (math.ceil(n / 2) for n in size)
    return height, width


def _image_shape(shape: Sequence[int]) -> tuple[int, int, int]:
    if len(shape) != 3 or not all(isinstance(n, int) and n >= 1 for n in shape):
        raise ValueError(f"input_shape must be (channels, height, width), got {shape!r}.")
    channels, height, width = shape
    return channels, height, width


def _check_images(network: nn.Module, arguments: tuple[Any, ...]) -> None:
    (images,) = arguments
    expected = network.input_shape
    if not isinstance(images, Tensor) or not images.is_floating_point() or images.shape[1:] != expected:
        got = f"{images.dtype} of shape {tuple(images.shape)}" if isinstance(images, Tensor) else type(images).__name__
        raise ValueError(
            f"the network takes images (batch, {', '.join(map(str, expected))}) of a floating-point type, got {got}: "  # type: ignore[arg-type]
            "convert them, or make the network with input_shape=..."
        )
