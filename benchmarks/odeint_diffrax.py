"""diffrax's Kvaerno5 on a batch of Robertson problems, under jit, in an environment with jax. Prints seconds as JSON.

Run by benchmarks/odeint.py with the Python of RESOLVENT_JAX, or build/jax/bin/python.
"""

import json
import os
import sys
import time

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

import diffrax  # noqa: E402
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

jax.config.update("jax_enable_x64", True)


def field(t, y, rates):
    a, b, c = y
    slow, back, fast = rates[0] * a, rates[1] * b * c, rates[2] * b * b
    return jnp.stack([back - slow, slow - back - fast, fast])


def end_state(rates):
    """The state at t = 1e4 for the rates (3,) of one sample."""
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(field),
        diffrax.Kvaerno5(),
        0.0,
        1e4,
        None,
        jnp.array([1.0, 0.0, 0.0]),
        args=rates,
        stepsize_controller=diffrax.PIDController(rtol=1e-6, atol=1e-9),
        max_steps=4096,
    )
    return solution.ys[-1]


def best(function, argument, repeats=5):
    jax.block_until_ready(function(argument))  # Compiles.
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(function(argument))
        times.append(time.perf_counter() - start)
    return min(times)


rates = jnp.array(json.loads(sys.stdin.read()))
forward = jax.jit(jax.vmap(end_state))
both = jax.jit(jax.grad(lambda r: jax.vmap(end_state)(r).sum()))
print(json.dumps({"forward": best(forward, rates), "both": best(both, rates, 3), "states": forward(rates).tolist()}))
