"""Turns, ratios, peaks of memory, and the choice among a peer's settings."""

import types
from functools import partial

import pytest
import torch

import resolvent as rs
from resolvent_lab.bench.contender import Contender, StepResult, TorchContender, exact
from resolvent_lab.bench.layers import Explicit
from resolvent_lab.bench.measure import measure, peak_bytes
from resolvent_lab.bench.networks import regression
from resolvent_lab.bench.peers import best, load
from resolvent_lab.bench.records import quartiles, ratio


class Clock(Contender):
    """Takes given times, and writes down when it was asked."""

    def __init__(self, name, seconds, log):
        self.name, self.takes, self.log = name, seconds, log

    def seconds(self, action, repeats):
        self.log.append((self.name, action, repeats))
        return self.takes

    def outcome(self):
        raise NotImplementedError

    def peak(self):
        raise NotImplementedError


def test_contenders_take_turns():
    log = []
    times = measure([Clock("a", 0.01, log), Clock("b", 0.03, log)], rounds=3, seconds=0.05)
    assert ratio(times["b"], times["a"], "train") == pytest.approx([3.0, 3.0, 3.0])
    assert times["a"]["infer"] == [0.01] * 3
    turns = [entry for entry in log if entry[1] == "train"][4:]
    assert [name for name, *_ in turns] == ["a", "b", "b", "a", "a", "b"]
    assert {name: repeats for name, _, repeats in turns} == {"a": 5, "b": 2}


def test_quartiles():
    assert quartiles([1.0, 2.0, 3.0, 4.0, 5.0]) == [2.0, 3.0, 4.0]
    assert quartiles([7.0]) == [7.0, 7.0, 7.0]


def test_the_peak_counts_what_is_held_at_a_time():
    def hold(kept: int) -> None:
        parts = []
        for _ in range(4):
            parts.append(torch.ones(1000, dtype=torch.float64))
            del parts[:-kept]

    held = [peak_bytes(partial(hold, kept), torch.device("cpu")) for kept in (1, 4)]
    # A list that keeps one has two while it lets go of the old one.
    assert held == [pytest.approx(16000, rel=0.1), pytest.approx(32000, rel=0.1)]


def test_the_fastest_setting_that_reaches_the_tolerance_is_chosen():
    task = regression(0.5, "cpu", training=0)

    def tolerance(rtol, old):
        return rs.ThetaBlock(old.field, old.theta, old.num_steps, old.horizon, stopping=rs.Stopping(rtol=rtol))

    peer = types.SimpleNamespace(
        candidates=lambda task: {
            "failing": partial(TorchContender, "peer", task, Failing),
            "wrong": partial(TorchContender, "peer", task, Explicit),
            "right": partial(TorchContender, "peer", task, partial(tolerance, 1e-7)),
            "without gradients": partial(Gradientless, "peer", task, partial(tolerance, 1e-7)),
        }
    )
    contender, report = best(peer, task, exact(task))
    assert contender is not None
    assert [entry["fit"] for entry in report] == [False, False, True, False]
    assert report[0]["failure"] == "no way to do it"
    assert residual_of(report, "wrong") > 1e-6 > residual_of(report, "right")
    peer.SAME_EQUATIONS = False
    _, report = best(peer, task, exact(task))
    assert [entry["fit"] for entry in report] == [False, True, True, False]
    peer.KIND = "compiled"
    assert best(peer, task, exact(task), kinds=("eager",)) == (None, [])


class Gradientless(TorchContender):
    def outcome(self):
        right = super().outcome()
        return StepResult(right.states, [torch.full_like(gradient, torch.nan) for gradient in right.gradients])


class Failing(Explicit):
    def layer(self, n, t, x):
        raise ValueError("no way to do it")


def residual_of(report, setting):
    return next(entry["residual"] for entry in report if entry["setting"] == setting)


def test_a_peer_is_a_file(tmp_path):
    (tmp_path / "other.py").write_text("def candidates(task):\n    return {}\n")
    module = load("other", tmp_path)
    assert best(module, regression(0.5, "cpu", training=0), None) == (None, [])
    with pytest.raises(ValueError, match="other"):
        load("unknown", tmp_path)
