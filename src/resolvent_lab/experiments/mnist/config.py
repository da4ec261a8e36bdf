"""The configuration of a run: data, network, training and measurements."""

from dataclasses import dataclass

import resolvent as rs
from resolvent.extending import Plan
from resolvent.models import ImplicitResNet, implicit_resnet18
from resolvent_lab.experiments.network import Config
from resolvent_lab.robustness.budget import Budget

SCHEDULES = ("plateau", "onecycle", "constant")
TRAININGS = ("clean", "noise", "adversarial")
SOLVERS: dict[str, Plan] = {
    "auto": rs.Auto(),
    "anderson": rs.Anderson(),
    "newton-krylov": rs.NewtonKrylov(),
    "picard": rs.Picard(),
}


@dataclass(frozen=True, kw_only=True)
class MnistConfig(Config):
    """A column of the table, with a seed. The defaults are the paper's network.

    Attributes:
        column: name of the column.
        data: "digits", "mnist" or "own", see `resolvent_lab.images.load`.
        colours, height, width, num_classes: of the images.
        train_size: number of training images.
        held_out: the held-out part to measure on: "test", or "validation" to choose among recipes.
        limit: number of images of each part to measure on; None takes all.
        draws: number of draws of the noise, for each level.

        architecture, ..., stem_gain: see `rs.models.implicit_resnet18`.
        solver: "auto", "anderson", "newton-krylov" or "picard".
        rtol: relative tolerance of the solves.
        graph_steps: if > 0, training on a GPU replays CUDA graphs with that many steps per solve. It has no effect with
            alpha_div or alpha_jac.

        batch_size: of training.
        schedule: of the learning rate: "plateau" (factor 0.7 after 10 epochs without progress), "onecycle" or
            "constant".
        weight_decay: of AdamW, for the weights of convolutions and linear layers only.
        label_smoothing: of the cross-entropy.
        alpha_div, alpha_jac, power: of `rs.regularizers.TrajectoryPenalty`, averaged over the stages.
        sensitivity, measure: of `rs.regularizers.Sensitivity`. It excludes the other penalties.
        training: "clean", "noise" of standard deviation `noise`, or "adversarial" with `attack_steps` steps of PGD
            within `attack_radius` in the norm `attack_norm`.
    """

    column: str
    data: str = "digits"
    colours: int = 1
    height: int = 28
    width: int = 28
    num_classes: int = 10
    train_size: int = 1000
    held_out: str = "test"
    limit: int | None = None
    draws: int = 5

    architecture: str = "paper"
    channels: int = 8
    normalization: str = "bounded"
    low: float = -3.0
    high: float = 1.0
    learn_shift: bool = False
    scale: float | None = None
    learn_scale: bool = True
    per_channel: bool = False
    always: bool = True
    power_iterations: int = 1
    transition_bound: float | None = None
    layers: int = 2
    steps: int = 1
    step_size: float = 1.0
    learn_theta: bool = False
    form: str = "midpoint"
    init: str = "xavier"
    stem_gain: float = 1.0
    solver: str = "auto"
    rtol: float = 1e-3
    graph_steps: int = 0

    epochs: int = 100
    learning_rate: float = 1e-2
    batch_size: int = 200
    schedule: str = "plateau"
    weight_decay: float = 0.0
    label_smoothing: float = 0.0
    alpha_div: float = 0.01
    alpha_jac: float = 0.0
    power: float = 2.0
    sensitivity: float = 0.0
    measure: str = "variance"
    training: str = "clean"
    noise: float = 0.3
    attack_norm: str = "l2"
    attack_radius: float = 1.0
    attack_steps: int = 3

    def __post_init__(self) -> None:
        for name, allowed in (("schedule", SCHEDULES), ("training", TRAININGS), ("solver", tuple(SOLVERS))):
            value = getattr(self, name)
            if value not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {value!r}.")
        if self.sensitivity and (self.alpha_div or self.alpha_jac):
            raise ValueError(
                f"sensitivity={self.sensitivity} takes the place of the penalties on the fields, got alpha_div="
                f"{self.alpha_div} and alpha_jac={self.alpha_jac}: set them to 0."
            )
        if self.graph_steps < 0:
            raise ValueError(f"graph_steps must be 0 or more, got {self.graph_steps}.")
        if self.held_out not in ("validation", "test"):
            raise ValueError(f"held_out must be validation or test, got {self.held_out!r}.")
        if self.normalization == "batch" and (self.alpha_div or self.alpha_jac or self.sensitivity):
            raise ValueError("batch normalisation couples samples, which makes a penalty on derivatives meaningless.")

    @property
    def name(self) -> str:
        return f"{self.column}-seed{self.seed}"

    @property
    def budget(self) -> Budget:
        """The budget of adversarial training."""
        return Budget(self.attack_norm, self.attack_radius)

    def build(self) -> ImplicitResNet:
        """The network, with random weights from torch's global generator."""
        return implicit_resnet18(
            self.theta,
            self.channels,
            self.num_classes,
            (self.colours, self.height, self.width),
            architecture=self.architecture,
            normalization=self.normalization,
            low=self.low,
            high=self.high,
            learn_shift=self.learn_shift,
            scale=self.scale,
            learn_scale=self.learn_scale,
            per_channel=self.per_channel,
            always=self.always,
            power_iterations=self.power_iterations,
            transition_bound=self.transition_bound,
            layers=self.layers,
            steps=self.steps,
            step_size=self.step_size,
            init=self.init,
            stem_gain=self.stem_gain,
            learn_theta=self.learn_theta,
            form=self.form,
            solver=SOLVERS[self.solver],
            stopping=rs.Stopping(rtol=self.rtol),
            # A failed solve must not end a long training. Failed solves are counted, and shown in the report.
            on_failure="warn",
        )
