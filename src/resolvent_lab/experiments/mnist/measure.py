"""Measurements: accuracies under Gaussian noise, and the cost of the solves."""

import torch

import resolvent as rs
from resolvent.models import ImplicitResNet
from resolvent_lab.experiments.mnist.config import MnistConfig
from resolvent_lab.experiments.network import Metrics
from resolvent_lab.images import Images, Split
from resolvent_lab.robustness.noise import gaussian_noise, noise_to_signal
from resolvent_lab.robustness.outcome import classify, fraction

SIGMAS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
HARDER = (0.8,)
"""A level beyond those of the paper."""
NOISE_SEED = 0
"""The same for all networks."""
_BATCHES = {"cpu": 500, "cuda": 10_000}
"""Images per forward pass. It does not change the results; large batches are faster on a GPU."""


def cell(part: str, sigma: float, top: int = 1, clamped: bool = False) -> str:
    """The name of a metric: the accuracy on a part, "train" or "held_out", at a noise level."""
    return f"{part}_{'clamped' if clamped else 'unclamped'}_{sigma:g}_top{top}"


def measure(model: ImplicitResNet, config: MnistConfig, data: Split, device: torch.device) -> Metrics:
    """Metrics of a network. Accuracies are in per cent, averaged over draws, on training and held-out images."""
    model = model.to(device).eval()
    metrics: Metrics = {"parameters": sum(parameter.numel() for parameter in model.parameters())}
    with torch.no_grad(), rs.blocks.frozen_weights(model) as model:
        for part, images in (("train", data.train), ("held_out", data.part(config.held_out))):
            metrics |= noise_table(model, part, images.take(slice(config.limit)).to(device), config.draws)
        few = data.part(config.held_out).take(slice(200)).to(device)
        metrics |= _solves(model, few)
        metrics["noise_to_signal"] = noise_to_signal(model, few.images, gaussian_noise(few.images, 0.5, NOISE_SEED))
    metrics["thetas"] = [float(torch.as_tensor(stage.theta).detach()) for stage in model.stages]
    return metrics


def noise_table(model: ImplicitResNet, part: str, data: Images, draws: int, batch_size: int | None = None) -> Metrics:
    """The accuracies on one part of the data, by name."""
    batch_size = batch_size or _BATCHES[data.images.device.type]
    clean = classify(model, data.images, data.labels, batch_size)
    sums = {
        cell(part, 0.0, top, clamped): draws * fraction(clean.top(top)) for top in (1, 2) for clamped in (False, True)
    }
    for draw in range(draws):
        # Drawn once for all levels, because drawing noise image by image is slow.
        noise = gaussian_noise(torch.zeros_like(data.images), 1.0, NOISE_SEED, draw)
        for sigma in (*SIGMAS[1:], *HARDER):
            noisy = data.images + sigma * noise
            for clamped in (False, True):
                outcome = classify(model, noisy.clamp(0, 1) if clamped else noisy, data.labels, batch_size)
                for top in (1, 2):
                    key = cell(part, sigma, top, clamped)
                    sums[key] = sums.get(key, 0.0) + fraction(outcome.top(top))
    return {key: 100 * value / draws for key, value in sums.items()}


def _solves(model: ImplicitResNet, data: Images) -> Metrics:
    """Solver steps and evaluations per layer, and failed solves, on clean and noisy images."""
    noisy = gaussian_noise(data.images, 0.5, NOISE_SEED)
    trajectories = [t for images in (data.images, noisy) for t in model.forward_with_trajectories(images).trajectories]
    solutions = [solution for trajectory in trajectories for solution in trajectory.solutions]
    if not solutions:
        return {"solver_steps": 0.0, "evaluations": 1.0, "failed_solves": 0}
    return {
        "solver_steps": torch.stack([solution.steps.double().mean() for solution in solutions]).mean().item(),
        "evaluations": sum(solution.evaluations for solution in solutions) / len(solutions),
        "failed_solves": sum(int((~solution.converged).sum()) for solution in solutions),
    }
