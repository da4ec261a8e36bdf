"""Spectral normalisation of a layer's weight by the norm of the layer's linear map."""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from resolvent.equation.numbered import Numbered, module_of
from resolvent.spectral.operators import LayerOperator, layer_operator
from resolvent.spectral.power import generic_vector, operator_norm, power_iteration, require_finite


class SpectralNorm(Numbered):
    """The parametrization that `spectral_norm` registers; it keeps the leading singular vector in `vector`.

    The vector is updated only when the weight changes, not when it is read: between two steps of an optimiser all
    evaluations of a layer, forward and backward, use the same norm. In a functional call and inside `torch.func`
    transforms the norm of the given weight is computed, and nothing is stored. In an ensemble, where `vmap` gives each
    copy its own weight, the vectors given with the weights are used.
    """

    vector: Tensor

    def __init__(
        self, operator: LayerOperator, weight: Tensor, bound: float, power_iterations: int, always: bool
    ) -> None:
        super().__init__()
        self.operator = operator
        self.bound = bound
        self.power_iterations = power_iterations
        self.always = always
        start = generic_vector((1, *operator.input_shape), dtype=torch.float64)
        self.register_buffer("vector", (start / start.norm()).to(weight))
        self._seen: Tensor | None = None
        self._converged = False
        self._recorded = False
        self._following = _CopyableLock()

    def forward(self, weight: Tensor) -> Tensor:
        with torch.autocast(weight.device.type, enabled=False):
            if torch.compiler.is_dynamo_compiling():
                vector = _followed(weight.detach(), list(self.vector.shape), self._number)
            elif isinstance(weight, nn.Parameter):
                vector = self._followed(weight)
            else:
                vector = self._measured(weight)
            # Constant v, differentiable weight: d|A v| is the exact differential of the norm at the singular vector.
            ratio: Tensor = torch.linalg.vector_norm(self.operator(weight, vector)) / self.bound
        smallest = torch.finfo(ratio.dtype).tiny if self.always else 1.0
        return weight / ratio.clamp(min=smallest)

    def right_inverse(self, weight: Tensor) -> Tensor:
        """Stores a weight assigned to the layer unchanged; its norm is computed when it is next read."""
        self._seen = None
        return weight

    def extra_repr(self) -> str:
        return f"bound={self.bound}, power_iterations={self.power_iterations}, always={self.always}"

    def _measured(self, weight: Tensor) -> Tensor:
        """The vector for a weight that is not the layer's own, as in a functional call; nothing is stored.

        For an ensemble, with one weight per copy of a vmapped function, it is the given vector: computing it would take
        a number of steps that depends on the weight.
        """
        if _capturing(weight) or _one_per_copy(weight):
            return self.vector
        return self._leading_vector(weight)

    def _leading_vector(self, weight: Tensor) -> Tensor:
        # The generic part is needed if a larger singular value has a vector orthogonal to the stored one.
        generic = generic_vector(self.vector.shape, dtype=torch.float64).to(self.vector)
        return operator_norm(partial(self.operator, weight.detach()), self.vector + generic / generic.norm())[1]

    def _followed(self, weight: Tensor) -> Tensor:
        """The vector for the layer's own weight."""
        # A second thread waits for the vector, instead of using the old one or computing it again.
        with self._following:
            self._follow(weight)
        return self.vector.clone() if self._recorded else self.vector

    def _follow(self, weight: Tensor) -> None:
        """Updates the vector if the weight has changed since the last call."""
        if _capturing(weight):
            self._follow_blindly(weight)
            return
        # By value: autograd's version counter misses fused optimisers and writes to `weight.data`.
        unchanged = self._seen is not None and _equal(self._seen, weight)
        if unchanged and (self._converged or self.training):
            return
        one_step_behind = self._seen is not None and self.training
        # A tensor made in inference mode cannot be used in a later backward pass.
        with torch.inference_mode(False):
            if one_step_behind:
                A = partial(self.operator, weight.detach())
                norm, vector = power_iteration(A, self.vector, self.power_iterations)
                require_finite(norm)
            else:
                vector = self._leading_vector(weight)
            self._seen = weight.detach().clone()
        self._replace(vector)
        self._converged = not one_step_behind

    @torch.no_grad()
    def _follow_blindly(self, weight: Tensor) -> None:
        """Updates the vector always: a CUDA graph cannot test whether the weight has changed."""
        self._recorded = True
        if self.training:
            self._replace(power_iteration(partial(self.operator, weight), self.vector, self.power_iterations)[1])

    @torch.no_grad()
    def _replace(self, vector: Tensor) -> None:
        if self._recorded:
            # In place: a CUDA graph reads and writes the vector at a fixed address.
            self.vector.copy_(vector)
        else:
            # A new tensor, not in place: an autograd graph may still need the old one.
            self.vector = vector

    def training_state(self) -> dict[str, Tensor]:
        """What a training needs beside the state dict to go on exactly: the weight that the vector belongs to.

        Without it the norm is computed in full after `load_state_dict`, which differs from one more step. Empty before
        the first call.
        """
        if self._seen is None:
            return {}
        return {"seen": self._seen, "converged": torch.tensor(self._converged)}

    def load_training_state(self, state: Mapping[str, Tensor]) -> None:
        """Restores what `training_state` returned, after `load_state_dict`."""
        self._seen = state["seen"].detach().clone().to(self.vector.device) if state else None
        self._converged = bool(state["converged"]) if state else False

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._seen = None


@torch.library.custom_op("resolvent::singular_vector", mutates_args=())
def _followed(weight: Tensor, shape: list[int], parametrization: Tensor) -> Tensor:
    """The vector of a parametrization for its layer's own weight, as one operation of a compiled graph."""
    # Outside inference mode autograd works even inside an operation.
    with torch.inference_mode(False), torch.no_grad():
        vector: Tensor = module_of(parametrization)._followed(weight.clone() if weight.is_inference() else weight)
        return vector.clone()


@_followed.register_fake
def _(weight: Tensor, shape: list[int], parametrization: Tensor) -> Tensor:
    return torch.empty(shape, dtype=weight.dtype, device=weight.device)


class _CopyableLock:
    """A lock that can be copied and pickled with its owner; the copy is a new lock."""

    def __init__(self) -> None:
        self._lock = Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def __reduce__(self) -> tuple[type["_CopyableLock"], tuple[()]]:
        return _CopyableLock, ()


def _one_per_copy(weight: Tensor) -> bool:
    """Whether a vmap is running in which each copy has its own weight."""
    while torch._C._functorch.is_functorch_wrapped_tensor(weight):
        if torch._C._functorch.is_batchedtensor(weight):
            return True
        weight = torch._C._functorch.get_unwrapped(weight)
    return False


def _capturing(weight: Tensor) -> bool:
    """Whether a CUDA graph is being recorded."""
    return weight.is_cuda and torch.cuda.is_current_stream_capturing()


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.device == b.device and torch.equal(a, b)


def spectral_norm(
    layer: nn.Module,
    input_shape: Sequence[int] | None = None,
    bound: float = 1.0,
    power_iterations: int = 1,
    always: bool = False,
) -> nn.Module:
    """Keeps the norm of a layer's linear map within a bound; modifies the layer in place.

        W -> W / max(1, |W| / bound)       or, if `always`,      W -> W bound / |W|

    |W| is the l2 operator norm of the layer on samples of `input_shape`, with its stride, padding, padding mode,
    dilation and groups. It is not that of the weight reshaped to a matrix, which may be several times smaller.

    The norm is computed in full before first use, after `load_state_dict` and, in evaluation mode, whenever the weight
    has changed: then the bound holds to about 1e-6 (float32: 1e-5). In training mode each change of the weight is
    followed by `power_iterations` steps of the power method, which lag behind when singular values cross: with one step
    and Adam we measured norms within 0.1 % of the bound at a learning rate of 1e-3, up to 20 % above it at 1e-2 (8 %
    with five steps). To detect a change the layer keeps a copy of its weight.

    First derivatives through the normalised weight are exact if the largest singular value is simple and the vector
    has converged. Second derivatives with respect to the weight treat the singular vector as a constant.

    Arguments:
        layer: Linear, Conv1d/2d/3d or ConvTranspose1d/2d/3d.
        input_shape: shape of one sample, without the batch; a Linear layer needs none.
        bound: the largest norm allowed.
        power_iterations: steps of the power method per change of the weight in training mode.
        always: whether to divide also if the norm is below the bound.

    Returns:
        The same layer, with a parametrized weight. A `Block` computes the weight once per pass; elsewhere
        `torch.nn.utils.parametrize.cached()` avoids repeated evaluations, with a cache that all threads share.

    Reference: Reshniak and Webster, Robust learning with implicit residual networks, 2021.
    """
    if not (math.isfinite(bound) and bound > 0):
        raise ValueError(f"bound must be a positive number, got {bound}")
    if power_iterations < 1:
        raise ValueError(f"power_iterations must be at least 1, got {power_iterations}")
    operator = layer_operator(layer, input_shape)
    if parametrize.is_parametrized(layer, "weight"):
        raise ValueError(
            f"the weight of {type(layer).__name__} is parametrized already: remove that parametrization, or normalise "
            "first, since the norm of a computed weight cannot be followed"
        )
    weight = layer.weight
    if not isinstance(weight, nn.Parameter):
        raise ValueError(f"the weight of {type(layer).__name__} is a {type(weight).__name__}, not an nn.Parameter")
    parametrize.register_parametrization(
        layer, "weight", SpectralNorm(operator, weight, float(bound), power_iterations, always)
    )
    return layer
