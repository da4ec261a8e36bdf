"""Attacks on a model with images that fool another, and what they tell about the model's own gradients."""

from torch import Tensor, nn

from resolvent_lab.robustness.budget import Budget
from resolvent_lab.robustness.gradient import pgd
from resolvent_lab.robustness.outcome import BATCH_SIZE, Outcome, judge


def transfer(
    model: nn.Module,
    surrogate: nn.Module,
    images: Tensor,
    labels: Tensor,
    budget: Budget,
    seed: int,
    steps: int = 40,
    restarts: int = 1,
    batch_size: int = BATCH_SIZE,
) -> Outcome:
    """Shows a model what projected gradient ascent on another one, the surrogate, has found; see `pgd`."""
    made = pgd(surrogate, images, labels, budget, seed, steps, restarts, batch_size)
    return judge(model, made.images, labels, batch_size)


def masked(withstands_gradients: Tensor, withstands_all: Tensor) -> Tensor:
    """(n,), where no attack that follows the model's gradients succeeds but one that does without them.

    Such images have adversarial examples that the gradients do not lead to. A few are chance; many say that the
    gradients are masked, by the solver or otherwise, and that only the worst case over all attacks is to be believed.

    Arguments:
        withstands_gradients: (n,), whether an image is classified correctly under all attacks that follow gradients.
        withstands_all: (n,), the same under all attacks, see `worst_case`.

    Reference: Athalye, Carlini and Wagner, Obfuscated gradients give a false sense of security, 2018.
    """
    return withstands_gradients & ~withstands_all
