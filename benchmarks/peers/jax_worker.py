"""The rows of the table in JAX, with the solvers of optimistix and diffrax; see jax.py, which starts it."""

import json
import sys
import time

import diffrax
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import optimistix as optx

TASK = json.loads(sys.argv[1])
THETA, STEP, LAYERS = TASK["theta"], TASK["step"], TASK["layers"]
METHOD, TOLERANCE = TASK["setting"]


def mlp(weights, y, activation):
    """The field of B1 and B2."""
    *hidden, last = weights
    for weight, bias in hidden:
        y = activation(weight @ y + bias)
    return last[0] @ y


def conv(x, kernel, bias=None, stride=1):
    y = jax.lax.conv_general_dilated(
        x, kernel, (stride, stride), [(kernel.shape[-1] // 2,) * 2] * 2, dimension_numbers=("NCHW", "OIHW", "NCHW")
    )
    return y if bias is None else y + bias[:, None, None]


def normalised(kernel, vector):
    return kernel / jnp.maximum(1.0, jnp.linalg.norm(conv(vector, kernel)))


def bounded(parts, y):
    """The part S*G of the field of B3 and B4, F(y) = -y + 2 S*G(y)."""
    scale, (bias1, kernel1), (bias2, kernel2) = parts
    return jax.nn.sigmoid(scale) * conv(jax.nn.relu(conv(jax.nn.relu(y), kernel1, bias1)), kernel2, bias2)


def small_layer(field, weights, x):
    """One theta layer for one sample of few unknowns, by a direct Newton method."""
    solver = {"Newton": optx.Newton, "Chord": optx.Chord}[METHOD](rtol=TOLERANCE, atol=TOLERANCE)

    def defect(z, args):
        weights, x = args
        return z - x - THETA * STEP * field(weights, z)

    z = optx.root_find(defect, solver, x, (weights, x), throw=False).value
    return x + (z - x) / THETA


def implicit_euler(field, weights, x):
    """The states after all layers of one sample, by diffrax."""
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(lambda t, y, weights: field(weights, y)),
        diffrax.ImplicitEuler(root_finder=optx.Newton(rtol=TOLERANCE, atol=TOLERANCE)),
        0.0,
        LAYERS * STEP,
        STEP,
        x,
        weights,
        saveat=diffrax.SaveAt(ts=STEP * jnp.arange(LAYERS + 1)),
        max_steps=LAYERS + 1,
        throw=False,
    )
    return solution.ys


def small_states(field, weights, x):
    """(layers + 1, batch, dim)."""
    if METHOD == "diffrax ImplicitEuler":
        return jax.vmap(lambda x: implicit_euler(field, weights, x), out_axes=1)(x)

    def one(x):
        step = lambda x, _: (y := small_layer(field, weights, x), y)  # noqa: E731
        return jnp.concatenate([x[None], jax.lax.scan(step, x, None, length=LAYERS)[1]])

    return jax.vmap(one, out_axes=1)(x)


def large_layer(parts, x):
    """One theta layer for a batch of images; the linear part of the field is on the left."""
    tau = THETA * STEP
    tight = TASK["tolerance"]
    adjoint = optx.ImplicitAdjoint(lx.GMRES(rtol=tight, atol=tight * 1e-3))

    def image(z, args):
        parts, x = args
        return (x + 2 * tau * bounded(parts, z)) / (1 + tau)

    if METHOD == "FixedPointIteration":
        solver = optx.FixedPointIteration(rtol=TOLERANCE, atol=TOLERANCE)
        z = optx.fixed_point(image, solver, x, (parts, x), adjoint=adjoint, throw=False).value
    else:
        solver = optx.Newton(rtol=TOLERANCE, atol=TOLERANCE, linear_solver=lx.GMRES(rtol=1e-2, atol=1e-2))
        defect = lambda z, args: z - image(z, args)  # noqa: E731
        z = optx.root_find(defect, solver, x, (parts, x), adjoint=adjoint, throw=False).value
    return x + (z - x) / THETA


def parts_of(weights, buffers, field):
    """Scale, biases and normalised kernels of a bounded field of two convolutions."""
    layers = [f"{field}field.layers.{n}." for n in range(2)]
    kernels = [weights[f"{layer}parametrizations.weight.original"] for layer in layers]
    vectors = [buffers[f"{layer}parametrizations.weight.0.vector"] for layer in layers]
    biases = [weights[f"{layer}bias"] for layer in layers]
    convolutions = zip(biases, map(normalised, kernels, vectors), strict=True)
    return weights[f"{field}raw_scale"], *convolutions


def regression(weights, buffers, batch):
    x, target = batch
    states = small_states(lambda w, y: mlp(w, y, lambda a: jax.nn.gelu(a, approximate=False)), pairs(weights), x)
    return jnp.mean((states[-1, :, 1] - target) ** 2), [states]


def lotka_volterra(weights, buffers, batch):
    (orbits,) = batch
    states = small_states(lambda w, y: mlp(w, y, jax.nn.relu), pairs(weights), orbits[0])
    return jnp.mean(jnp.sum((states - orbits)[1:] ** 2, -1)), [states]


def pairs(weights):
    """The matrices of a perceptron, each with its bias; the last one has none."""
    names = [f"layers.field.layers.{n}." for n in range(len(weights) // 2 + 1)]
    return [[weights[f"{name}{kind}"] for kind in ("weight", "bias") if f"{name}{kind}" in weights] for name in names]


def resnet(weights, buffers, batch):
    images, labels = batch
    y = conv(images, weights["stem.weight"], weights["stem.bias"], stride=2)
    trajectories = []
    for stage in range(1, 5):
        if stage > 1:
            y = conv(y, weights[f"down{stage}.weight"], weights[f"down{stage}.bias"], stride=2)
        states = [y]
        for n in range(LAYERS):
            states.append(large_layer(parts_of(weights, buffers, f"stage{stage}.field.fields.{n}."), states[-1]))
        y = states[-1]
        trajectories.append(jnp.stack(states))
    logits = jnp.mean(y, axis=(2, 3)) @ weights["head.weight"].T + weights["head.bias"]
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=1)
    return -jnp.mean(chosen), trajectories


def convolutions(weights, buffers, batch):
    x, target = batch
    parts = parts_of(weights, buffers, "layers.field.")
    step = lambda x, _: (y := large_layer(parts, x), y)  # noqa: E731
    states = jnp.concatenate([x[None], jax.lax.scan(step, x, None, length=LAYERS)[1]])
    return jnp.mean((states[-1] - target) ** 2), [states]


class Worker:
    """Answers the questions of jax.py."""

    def __init__(self):
        loss = {"B1": regression, "B2": lotka_volterra, "B3": resnet, "B4": convolutions}[TASK["row"]]
        with np.load(f"{TASK['folder']}/task.npz") as arrays:
            self.weights = [
                {name.split("/")[2]: jnp.asarray(arrays[name]) for name in arrays.files if name.startswith(when)}
                for when in ("before/", "after/")
            ]
            self.first = self.weights[0]
            buffers = {name[7:]: jnp.asarray(arrays[name]) for name in arrays.files if name.startswith("buffer/")}
            batch = [jnp.asarray(arrays[name]) for name in arrays.files if name.startswith("batch/")]
        self.batch, self.compiled = batch, {}
        self.run = lambda weights, batch: loss(weights, buffers, batch)

    def step(self, action):
        """Compiled when first needed: gradients and states, or the loss alone."""
        if action not in self.compiled:
            act = {"train": jax.grad(self.run, has_aux=True), "infer": lambda *given: self.run(*given)[0]}[action]
            self.compiled[action] = jax.jit(act).lower(self.weights[0], self.batch).compile()
        return self.compiled[action]

    def seconds(self, action, repeats):
        step = self.step(action)
        start = time.perf_counter()
        for _ in range(repeats):
            self.weights.reverse()
            jax.block_until_ready(step(self.weights[0], self.batch))
        return (time.perf_counter() - start) / repeats

    def peak(self):
        plan = self.step("train").memory_analysis()
        return plan.temp_size_in_bytes + sum(array.nbytes for array in self.weights[0].values())

    def outcome(self):
        gradients, states = self.step("train")(self.first, self.batch)
        arrays = {f"gradient{n:03d}": np.asarray(gradients[name]) for n, name in enumerate(self.first)}
        arrays |= {f"states{n:03d}": np.asarray(s) for n, s in enumerate(states)}
        np.savez(f"{TASK['folder']}/results.npz", **arrays)


worker = Worker()
for line in sys.stdin:
    name, *arguments = json.loads(line)
    print(json.dumps(getattr(worker, name)(*arguments)), flush=True)
