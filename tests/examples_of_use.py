"""Examples of calls of the public functions and modules, by name; a new one joins the table at the end.

A name may have several, as "name: what is special about it". Solvers, adjoints, memory policies and schemes are found
by their kind, see `public_names`.
"""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn

import resolvent as rs
from resolvent import analysis, estimators, fields, models, plotting, regularizers, schemes, spectral
from resolvent.schemes import tableaux
from resolvent.solvers.resolve import solve_options

mpl.use("Agg")


@dataclass(frozen=True)
class Example:
    """A call with one tensor.

    Attributes:
        build: makes all that does not depend on the tensor, and returns the function to call with it.
        shape: of the tensor.
    """

    build: Callable[[], Callable[[Tensor], Any]]
    shape: tuple[int, ...] = (3, 4)


def given(make: Callable[[], Any], call: Callable[[Tensor, Any], Any], shape: tuple[int, ...] = (3, 4)) -> Example:
    """A call with the tensor and something that is made once."""

    def build() -> Callable[[Tensor], Any]:
        made = make()
        return lambda x: call(x, made)

    return Example(build, shape)


IMAGES = (2, 2, 4, 4)
SMALL = (2, 1, 8, 8)
# More unknowns than a Jacobian is formed for.
WIDE = (2, 260)


def wide(t: float, y: Tensor) -> Tensor:
    rates = torch.linspace(-1, 1, WIDE[1], dtype=y.dtype) ** 3
    return rates * torch.sin(y) + 0.1 * y.roll(1, dims=1)


def mlp() -> rs.fields.MLP:
    return fields.MLP(4, 6, 1, activation=nn.Tanh())


def two_pieces() -> rs.fields.Piecewise:
    return fields.Piecewise([mlp(), mlp()], 0.6)


def layer_and_tanh() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh())


def stopping() -> rs.Stopping:
    """Sharp where nothing is rounded: what is compared shall differ by rounding alone."""
    if torch.get_default_dtype() == torch.float64:
        return rs.Stopping(rtol=1e-12, atol=1e-13)
    return rs.Stopping(rtol=5e-3, atol=1e-3)


def block(field: Any = None, **options: Any) -> rs.ThetaBlock:
    return rs.ThetaBlock(field or mlp(), num_steps=3, horizon=0.6, stopping=stopping(), **options)


def passes(layers: rs.Block) -> Callable[[Tensor], Any]:
    """All that a block can be asked for."""
    return lambda x: (layers(x), layers.trajectory(x).states, layers.interpolate(x, [0.05, 0.3]))


def solve(b: Tensor, function: Callable[[Tensor], Tensor], tau: float = 0.4, **options: Any) -> Tensor:
    return rs.resolve(function, b, tau, stopping=stopping(), **options).value


def solving(**options: Any) -> Example:
    """A solve with the options of `resolve`."""
    return Example(lambda: partial(solve, function=layer_and_tanh(), **options))


def stepping(scheme: rs.schemes.Scheme) -> Example:
    """Blocks of some steps of a scheme, through a field of two halves and, where the scheme takes it, another."""
    made = [lambda: fields.Hamiltonian(nn.Linear(2, 3), nn.Linear(2, 3))]
    if not isinstance(scheme, schemes.Symplectic | schemes.PartitionedRungeKutta):
        made.append(mlp)

    def build() -> Callable[[Tensor], list[Tensor]]:
        blocks = [rs.Block(make(), scheme, num_steps=4, horizon=0.4, stopping=stopping()) for make in made]
        return lambda x: [steps(x) for steps in blocks]

    return Example(build)


def integrated(scheme: Any, **options: Any) -> Callable[[Tensor], Tensor]:
    field = mlp()
    return lambda x: rs.odeint(field, x, [0.0, 0.3, 0.6], scheme, **options).states


def with_linear_part(part: fields.LinearPart) -> Callable[[Tensor], Any]:
    """A field with a linear part, in an additive scheme and in implicit layers."""
    field = fields.Autonomous(lambda y: part.product(y) + 0.3 * torch.sin(y), rowwise=True, linear_part=part)
    layers = block(field)
    return lambda x: (
        rs.odeint(field, x, [0.0, 0.3], tableaux.KENCARP4).states,
        layers(x),
        part.solve(x, 0.1),
    )


def field_example(make: Callable[[], rs.fields.Field], shape: tuple[int, ...] = (3, 4)) -> Example:
    """A field evaluated at one time and at a time for each sample, and a block of it."""

    def build() -> Callable[[Tensor], Any]:
        field = make()
        layers = block(field)
        return lambda y: (field(0.1, y), field(torch.linspace(0.0, 0.5, len(y), dtype=y.dtype), y), layers(y))

    return Example(build, shape)


def classifier() -> nn.Module:
    field = fields.Bounded(fields.MLP(4, 6, 1, activation=nn.ReLU(), bound=1.0), -2.0, 0.5)
    return nn.Sequential(block(field), nn.Linear(4, 3)).eval()


def resnet() -> nn.Module:
    return models.implicit_resnet18(
        channels=1, num_classes=3, input_shape=SMALL[1:], architecture="authors", stopping=stopping()
    )


def penalised(penalty: Callable[[Any, rs.blocks.Trajectory], Any]) -> Example:
    """A penalty of the trajectory of a block."""

    def build() -> Callable[[Tensor], Any]:
        layers = block(two_pieces())
        return lambda x: penalty(layers.field, layers.trajectory(x))

    return Example(build)


def with_weight(weight: Tensor, layer: nn.Linear) -> nn.Linear:
    """The layer with another weight, whatever kind of tensor that is."""
    layer._parameters.pop("weight", None)
    layer.weight = weight
    return layer


def of_scheme(function: Callable[..., Any], scheme: Any = schemes.BDF2) -> Example:
    """A function of a scheme alone."""
    return Example(lambda: lambda x: function(scheme))


def jacobian(x: Tensor, layer: nn.Module) -> tuple[Tensor, ...]:
    J = analysis.Jacobian(lambda y: torch.tanh(layer(y)), x)
    return J.product(x), J.transposed_product(torch.ones_like(J.value)), J.matrix()


def diagnosis(x: Tensor, layers: rs.Block) -> Any:
    found = analysis.diagnose(layers, x)
    numbers = [(n.field_norm, n.abscissa, n.growth, n.pole_distance, n.lipschitz, n.failed) for n in found.layers]
    return numbers, found.lipschitz, len(found.advice)


def loaded_spectrum(x: Tensor) -> Tensor:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "spectrum.pt"
        analysis.Spectrum(torch.ones(3, dtype=torch.complex128), 0.5).save(path)
        return analysis.load_spectrum(path).eigenvalues


def initialised(x: Tensor, layer: nn.Linear) -> Tensor:
    fields.initialise([layer], "xavier_unit")
    return layer(x)


def drawn(draw: Callable[[Tensor], Any]) -> Example:
    """The numbers in a figure: the points of its lines and markers."""

    def call(x: Tensor) -> Any:
        axes = draw(x)
        numbers = [line.get_xydata() for ax in (axes if isinstance(axes, tuple) else (axes,)) for line in ax.lines]
        numbers += [c.get_offsets() for c in getattr(axes, "collections", ()) if len(c.get_offsets()) > 1]
        plt.close("all")
        return [torch.tensor(n) for n in numbers]

    return Example(lambda: call)


def saved(x: Tensor) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        ax = plotting.training_curves({"loss": [2.0, 1.0]})
        files = plotting.save(ax, Path(folder) / "curve")
        plt.close("all")
        return all(file.is_file() for file in files)


def styled(x: Tensor) -> float:
    with plotting.paper_style():
        return float(mpl.rcParams["axes.linewidth"])


def frozen(x: Tensor, field: rs.fields.MLP) -> Tensor:
    with rs.blocks.frozen_weights(field) as fixed:
        return fixed(0.0, x)


def exported(x: Tensor, block: rs.ThetaBlock) -> Any:
    block.num_steps = 1  # A small program is made quickly.
    return rs.blocks.export(block, x, steps=2).module()(x)[0]


def failing_together(x: Tensor, block: rs.ThetaBlock) -> Tensor:
    with rs.blocks.FailTogether(block) as ranks:
        y = block(x)
        ranks.check(y.sum())
    return y


def monitored(x: Tensor, block: rs.ThetaBlock) -> Any:
    with rs.blocks.Monitor(block) as monitor:
        y = block(x)
    assert monitor.records
    return y


def recorded(x: Tensor, record: rs.blocks.SolveRecord) -> Any:
    record.add(rs.resolve(torch.cos, x, 0.5))
    return x


def solved_otherwise(x: Tensor, block: rs.ThetaBlock) -> Tensor:
    with rs.blocks.solved_with(block, stopping=stopping()):
        return block(x)


def halves(x: Tensor) -> dict[str, Tensor]:
    """A state of two tensors of different shapes."""
    return {"q": x[:, :3], "p": x[:, 3]}


def swirl(t: Any, y: dict[str, Tensor]) -> dict[str, Tensor]:
    return {"q": -y["q"].sin() + y["p"][:, None], "p": -y["q"].sum(1)}


def swirled(z: dict[str, Tensor], x: dict[str, Tensor]) -> dict[str, Tensor]:
    turned = swirl(0.0, z)
    return {name: x[name] + 0.2 * turned[name] for name in x}


class Injected(nn.Module):
    """A contraction, plus the input."""

    def __init__(self, *more: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), *more)

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        return self.layers(z) / 4 + x


def monotone(**options: Any) -> rs.Equilibrium:
    return rs.Equilibrium(fields.Monotone(4, nn.Linear(4, 4), margin=0.5), stopping=stopping(), **options)


EXAMPLES: dict[str, Example] = {
    "Autonomous": field_example(lambda: rs.Autonomous(nn.Linear(4, 4), rowwise=True)),
    "Block": stepping(schemes.Theta(0.5)),
    "fields.Partitioned": field_example(
        lambda: fields.Partitioned(fields.MLP(2, 3, 1, activation=nn.Tanh()), fields.MLP(2, 3, 1, activation=nn.Tanh()))
    ),
    "Rowwise": Example(
        lambda: lambda x: solve(x, rs.Rowwise(lambda w, c: torch.tanh(w) * c, x.square() / 8), solver=rs.Newton())
    ),
    "Equilibrium": given(
        lambda: rs.Equilibrium(Injected(), stopping=stopping()), lambda x, layer: (layer(x), layer(x, z0=x.cos()))
    ),
    "Equilibrium: states of several tensors, started warm": given(
        lambda: rs.Equilibrium(swirled, stopping=stopping(), warm=3),
        lambda x, layer: layer(halves(x), samples=torch.arange(3)),
    ),
    "ThetaBlock": Example(lambda: passes(block())),
    "ThetaBlock: trapezoid form": Example(lambda: passes(block(form="trapezoid", mode="sequential"))),
    "ThetaBlock: learned": Example(lambda: passes(block(learn_theta=True))),
    "ThetaBlock: states of several tensors": given(lambda: passes(block(swirl)), lambda x, call: call(halves(x))),
    "check_field": given(mlp, lambda x, field: rs.check_field(field, x)),
    "blocks.FailTogether": given(lambda: rs.ThetaBlock(mlp()), failing_together),
    "blocks.export": given(lambda: block(solver=rs.Picard()).eval(), exported),
    "blocks.cuda_graph": given(
        block, lambda x, model: (rs.blocks.cuda_graph(model, x, steps=8) if x.is_cuda else model)(x)
    ),
    "blocks.CudaGraph": given(block, lambda x, model: (rs.blocks.CudaGraph(model, 8) if x.is_cuda else model)(x)),
    "adjoints.ShineAdjoint": solving(adjoint=rs.adjoints.ShineAdjoint(), solver=rs.Broyden()),
    "analysis.gradient_error": Example(
        lambda: partial(rs.analysis.gradient_error, rs.OneStepAdjoint(), nn.Linear(4, 4), tau=0.1, stopping=stopping())
    ),
    "make_implicit": given(
        layer_and_tanh, lambda x, m: rs.make_implicit(m, kind="branch", predicate=lambda n, _: n == "0")(x)
    ),
    "jvp": given(classifier, lambda x, model: rs.jvp(model, x, x.cos())[:2]),
    "jvp: by forward mode": given(lambda: block(form="trapezoid"), lambda x, model: rs.jvp(model, x, x.cos())[:2]),
    "odeint": Example(lambda: integrated("auto")),
    "odeint: implicit, with jumps": Example(lambda: integrated(tableaux.KVAERNO5, jumps=[0.25])),
    "odeint: with the continuous adjoint": Example(lambda: integrated(tableaux.TSITOURAS5, memory="adjoint")),
    "odeint: states of several tensors": Example(lambda: lambda x: rs.odeint(swirl, halves(x), [0.0, 0.6]).final),
    "odeint: with an event": given(
        mlp, lambda x, field: rs.odeint(field, x, [0.0, 0.6], event=lambda t, y: t + 0.1 * y[:, 0] - 0.4).final
    ),
    "resolve": solving(),
    "resolve: states of several tensors": Example(
        lambda: lambda x: solve(halves(x), lambda w: swirl(0.0, w), w0=halves(x.cos()))  # type: ignore[arg-type]
    ),
    "resolve: tensors for tau and the first guess": given(
        layer_and_tanh, lambda b, F: solve(b, F, tau=0.1 * b[:, 0].sigmoid(), w0=b.cos())
    ),
    "analysis.Jacobian": given(lambda: nn.Linear(4, 5), jacobian),
    "analysis.amplification": Example(lambda: partial(analysis.amplification, schemes.BDF2)),
    "analysis.certified_radius": Example(lambda: partial(analysis.certified_radius, classifier(), lipschitz=2.0)),
    "analysis.certified_radius: by its own bound": Example(lambda: partial(analysis.certified_radius, classifier())),
    "analysis.contractive_radius": of_scheme(analysis.contractive_radius),
    "analysis.diagnose": given(block, diagnosis),
    "analysis.extreme_eigenvalues": Example(
        lambda: lambda x: analysis.extreme_eigenvalues(lambda v: v * x.square(), torch.ones_like(x)).real
    ),
    "analysis.is_stable": Example(lambda: partial(analysis.is_stable, schemes.BDF2)),
    "analysis.jacobian_spectrum": given(mlp, lambda x, F: analysis.jacobian_spectrum(F, 0.0, x).abs()),
    "analysis.jacobian_spectrum: by products": Example(
        lambda: lambda x: analysis.jacobian_spectrum(wide, 0.0, x, count=2).abs(), WIDE
    ),
    "analysis.jacobian_spectrum: along a trajectory": given(
        mlp, lambda x, F: analysis.jacobian_spectrum(F, x.new_tensor([0.0, 0.1]), torch.stack([x, x.cos()])).abs()
    ),
    "analysis.linear_form": of_scheme(lambda scheme: analysis.linear_form(scheme).matrix(-1.0)),
    "analysis.lipschitz_bound": given(classifier, lambda x, model: analysis.lipschitz_bound(model)),
    "analysis.load_spectrum": Example(lambda: loaded_spectrum),
    "analysis.local_lipschitz": Example(lambda: partial(analysis.local_lipschitz, block())),
    "analysis.local_lipschitz: any function": Example(lambda: partial(analysis.local_lipschitz, nn.Linear(4, 3))),
    "analysis.multistep_roots": Example(
        lambda: lambda z: analysis.multistep_roots(schemes.BDF2.alpha, schemes.BDF2.beta, z).abs()
    ),
    "analysis.numerical_range": Example(lambda: partial(analysis.numerical_range, mlp(), 0.0)),
    "analysis.numerical_range: by products": Example(
        lambda: partial(analysis.numerical_range, wide, 0.0, num_angles=4), WIDE
    ),
    "analysis.one_sided_lipschitz: by products": Example(
        lambda: partial(analysis.one_sided_lipschitz, wide, 0.0), WIDE
    ),
    "analysis.one_sided_lipschitz": Example(lambda: partial(analysis.one_sided_lipschitz, mlp(), 0.0)),
    "analysis.oscillator_eigenvalues": of_scheme(
        lambda scheme: analysis.oscillator_eigenvalues(scheme, 0.1, 2.0), schemes.VERLET
    ),
    "analysis.oscillator_matrix": of_scheme(
        lambda scheme: analysis.oscillator_matrix(scheme, 0.1, 2.0), schemes.VERLET
    ),
    "analysis.runge_kutta_stability": Example(
        lambda: partial(analysis.runge_kutta_stability, tableaux.RADAU3.A, tableaux.RADAU3.b)
    ),
    "analysis.scheme_facts": of_scheme(analysis.scheme_facts),
    "analysis.scheme_order": of_scheme(analysis.scheme_order),
    "analysis.stability_interval": of_scheme(analysis.stability_interval, schemes.VERLET),
    "analysis.stability_matrix": Example(lambda: partial(analysis.stability_matrix, schemes.BDF2)),
    "analysis.theta_lipschitz": Example(lambda: lambda x: analysis.theta_lipschitz(spectral.Disc(-1.0, 0.5), 0.5, 0.1)),
    "analysis.theta_stability": Example(lambda: lambda x: analysis.theta_stability(x.sigmoid(), -x.square())),
    "analysis.theta_stability_inverse": Example(
        lambda: lambda x: analysis.theta_stability_inverse(x.sigmoid(), 2 + x.square())
    ),
    "estimators.diagonal": Example(lambda: partial(estimators.diagonal, mlp(), 0.0)),
    "estimators.frobenius": Example(lambda: partial(estimators.frobenius, mlp(), 0.0)),
    "estimators.rank_generator": Example(
        lambda: lambda x: torch.rand(2, generator=estimators.rank_generator(0), dtype=torch.float64)
    ),
    "estimators.trace": Example(lambda: partial(estimators.trace, mlp(), 0.0, probes=6, hutchpp=True)),
    "estimators.trace: of a function of the state": Example(lambda: partial(estimators.trace, nn.Linear(4, 4), None)),
    "estimators.trace_and_frobenius": Example(lambda: partial(estimators.trace_and_frobenius, mlp(), 0.0, exact=True)),
    "Autonomous: with a linear part": field_example(lambda: fields.Autonomous(nn.Linear(4, 4), linear_part=-0.1)),
    "fields.Bounded": field_example(lambda: fields.Bounded(fields.MLP(4, 6, 1, bound=1.0), -3.0, 0.5)),
    "fields.Conv": field_example(lambda: fields.Conv(2, 2, size=(4, 4), activation=nn.Tanh()), IMAGES),
    "fields.ConvexGradient": Example(
        lambda: fields.ConvexGradient(nn.Linear(4, 5), nn.Tanh(), None, 1.0, None, False, 1)
    ),
    "fields.FourierPart": Example(lambda: with_linear_part(fields.FourierPart.laplacian((4,), 0.5))),
    "fields.MatrixPart": Example(
        lambda: with_linear_part(fields.MatrixPart(torch.tensor([[-2.0, 1.0], [1.0, -3.0]]).kron(torch.eye(2))))
    ),
    "fields.GradientFlow": field_example(lambda: fields.GradientFlow(nn.Linear(4, 5), bound=1.0)),
    "fields.GradientFlow: a convolution that pads by reflection": field_example(
        lambda: fields.GradientFlow(
            nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"), input_shape=IMAGES[1:], bound=1.0
        ),
        IMAGES,
    ),
    "fields.Hamiltonian": field_example(lambda: fields.Hamiltonian(nn.Linear(2, 3), nn.Linear(2, 3), bound=1.0)),
    "fields.MLP": field_example(mlp),
    "fields.OneSided": field_example(lambda: fields.OneSided(nn.Linear(4, 5), 0.5)),
    "fields.Monotone": given(monotone, lambda x, layer: layer(x)),
    "fields.Piecewise": field_example(two_pieces),
    "solvers.ForwardBackward": given(lambda: monotone(solver=rs.solvers.ForwardBackward()), lambda x, layer: layer(x)),
    "solvers.PeacemanRachford": given(
        lambda: monotone(solver=rs.solvers.PeacemanRachford()), lambda x, layer: layer(x)
    ),
    "fields.Sin": Example(fields.Sin),
    "fields.initialise": given(lambda: nn.Linear(4, 4), initialised),
    "fields.nonexpansive": Example(lambda: lambda x: fields.nonexpansive(nn.Softplus())(x)),
    "fields.slopes_of": Example(lambda: lambda x: fields.slopes_of(nn.GELU())),
    "models.ImplicitResNet": given(
        resnet, lambda x, model: (model(x), model.forward_with_trajectories(x).logits), SMALL
    ),
    "blocks.FrozenRandomness": given(
        lambda: rs.Equilibrium(rs.blocks.FrozenRandomness(Injected(nn.Dropout(0.5))), stopping=stopping()),
        lambda x, layer: layer(x),
    ),
    "blocks.frozen_weights": given(mlp, frozen),
    "blocks.Monitor": given(lambda: rs.ThetaBlock(mlp()), monitored),
    "blocks.SolveRecord": given(rs.blocks.SolveRecord, recorded),
    "blocks.solved_with": given(lambda: rs.ThetaBlock(mlp()), solved_otherwise),
    "models.implicit_resnet18": Example(lambda: lambda x: resnet()(x), SMALL),
    "plotting.paper_style": Example(lambda: styled),
    "plotting.phase_diagram": drawn(lambda x: plotting.phase_diagram(schemes.VERLET)),
    "plotting.phase_diagrams": drawn(lambda x: plotting.phase_diagrams()),
    "plotting.save": Example(lambda: saved),
    "plotting.spectrum": drawn(lambda x: plotting.spectrum(torch.complex(x, x), schemes.BDF2, resolution=21)),
    "plotting.stability_region": drawn(lambda x: plotting.stability_region(schemes.BDF2, resolution=21)),
    "plotting.theta_regions": drawn(lambda x: plotting.theta_regions(resolution=21)),
    "plotting.training_curves": drawn(lambda x: plotting.training_curves({"loss": x.square()})),
    "plotting.vector_field": drawn(
        lambda x: plotting.vector_field(lambda t, y: -y, arrows=3, trajectories=x.reshape(3, 2, 2))
    ),
    "regularizers.DiagonalPenalty": penalised(regularizers.DiagonalPenalty()),
    "regularizers.Solvability": penalised(regularizers.Solvability(limit=-1.0)),
    "regularizers.JacobianPenalty": given(
        lambda: rs.Equilibrium(Injected(), stopping=stopping()),
        lambda x, layer: regularizers.JacobianPenalty(0.5)(layer.f, layer(x), x),
    ),
    "regularizers.KineticEnergy": penalised(regularizers.KineticEnergy()),
    "regularizers.Sensitivity": given(
        classifier, lambda x, model: regularizers.Sensitivity(1.0, "softmax")(model, x)[:2]
    ),
    "regularizers.TotalDerivative": penalised(regularizers.TotalDerivative()),
    "regularizers.TrajectoryPenalty": penalised(
        lambda field, path: regularizers.TrajectoryPenalty(1.0, 1.0, 1.0)(field, path).total
    ),
    "regularizers.variation": given(two_pieces, lambda x, field: regularizers.variation(field)),
    "schemes.Interval": given(
        mlp,
        lambda x, F: (
            schemes.RungeKutta(tableaux.RADAU5)
            .step(schemes.Interval(F, 0.0, 0.1, solve_options(None, stopping(), None, "raise")), schemes.Carry((x,)))
            .state
        ),
    ),
    "schemes.explicit": Example(lambda: block(guess=schemes.explicit)),
    "schemes.extrapolate": Example(lambda: block(guess=schemes.extrapolate)),
    "schemes.previous": Example(lambda: block(guess=schemes.previous)),
    "schemes.Multistep": stepping(schemes.Multistep((1.0,), (0.5, 0.5), 2)),
    "schemes.PartitionedRungeKutta": stepping(
        schemes.PartitionedRungeKutta(tableaux.LOBATTO_IIIA, tableaux.LOBATTO_IIIB)
    ),
    "schemes.RungeKutta": stepping(schemes.RungeKutta(tableaux.SDIRK2)),
    "schemes.Symplectic": stepping(schemes.Symplectic((1.0,), (1.0,), 1)),
    "schemes.Theta": stepping(schemes.Theta(0.7, "trapezoid")),
    "spectral.SpectralNorm": Example(lambda: spectral.spectral_norm(nn.Linear(4, 4), bound=0.5)),
    "spectral.layer_operator": given(
        lambda: nn.Linear(4, 4), lambda x, layer: spectral.layer_operator(layer)(layer.weight, x)
    ),
    "spectral.norm_bound": given(
        lambda: nn.Linear(4, 4), lambda W, layer: spectral.norm_bound(with_weight(W, layer)), (4, 4)
    ),
    "spectral.norm_bound: a large convolution": given(
        lambda: [nn.Conv2d(2, 3, 3, padding=1, padding_mode=mode) for mode in ("zeros", "reflect")],
        lambda x, layers: [spectral.norm_bound(layer, IMAGES[1:], assemble=1) for layer in layers],
    ),
    "spectral.operator_norm": Example(lambda: lambda W: spectral.operator_norm(lambda v: v @ W, (4,))[0], (4, 4)),
    "spectral.power_iteration": Example(
        lambda: lambda W: spectral.power_iteration(lambda v: v @ W, torch.ones_like(W[0]), 3), (4, 4)
    ),
    "spectral.schur_bound": Example(lambda: lambda W: spectral.schur_bound(lambda v: v @ W.abs().to(v), (4,)), (4, 4)),
    "spectral.spectral_norm": given(
        lambda: nn.Linear(4, 4), lambda x, layer: spectral.spectral_norm(layer, bound=0.5)(x)
    ),
}
