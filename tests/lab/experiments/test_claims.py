"""Verdicts follow from the numbers alone."""

from pathlib import Path

import pytest

from resolvent_lab.experiments.catalogue import experiments
from resolvent_lab.experiments.claim import Claim, ClaimResult, judge_claims
from resolvent_lab.experiments.regression.model import RegressionConfig
from resolvent_lab.experiments.results import Failure, Results
from resolvent_lab.experiments.run import Run
from resolvent_lab.experiments.tables import spread


def make_run(mse, seed=0, theta=0.5, alpha_div=0.0):
    config = RegressionConfig(theta=theta, alpha_div=alpha_div, seed=seed)
    return Run("regression", config, {"mse": mse}, {}, 1.0, Path())


CLAIM = Claim("fits", "error", lambda runs: runs("mse", theta=0.5), high=1.0)


@pytest.mark.parametrize(
    ("errors", "verdict", "successes"), [((0.1, 0.2), "reproduced", 2), ((0.1, 2.0), "not reproduced", 1)]
)
def test_a_claim_has_to_hold_for_every_seed(errors, verdict, successes):
    (outcome,) = judge_claims([CLAIM], Results(tuple(make_run(mse, seed) for seed, mse in enumerate(errors))))
    assert outcome.verdict == verdict
    assert outcome.successes == successes
    assert outcome.values == errors


def test_a_number_that_is_none_does_not_pass():
    (outcome,) = judge_claims([CLAIM], Results((make_run(float("nan")),)))
    assert outcome.verdict == "not reproduced"


def test_a_claim_without_its_runs_is_not_judged():
    (outcome,) = judge_claims([CLAIM], Results((make_run(0.1, theta=1.0),)))
    assert outcome.verdict == "not run"


def test_ratios_compare_runs_that_differ_in_one_setting():
    claim = Claim("rises", "ratio", lambda runs: min(runs.ratios("mse", lambda c: True, {"alpha_div": (1.0, 0.0)})))
    runs = (make_run(0.1), make_run(0.5, alpha_div=1.0), make_run(7.0, theta=0.0))
    (outcome,) = judge_claims([claim], Results(runs))
    assert outcome.values == pytest.approx((5.0,))


WHERE = [
    lambda runs: runs("mse", theta=0.5, alpha_div=0.0),
    lambda runs: max(runs.all("mse", lambda c: c.theta >= 0.5)),
    lambda runs: min(runs.ratios("mse", lambda c: c.theta >= 0.5, {"alpha_div": (0.0, 1.0)})),
]


@pytest.mark.parametrize("measure", WHERE)
def test_a_seed_with_a_failed_run_is_left_out_and_told(measure):
    runs = (make_run(0.1), make_run(0.2, alpha_div=1.0), make_run(0.3, seed=1, alpha_div=1.0), make_run(0.1, 1, 1.0))
    failed = make_run(0.0, seed=1).config
    claim = Claim("fits", "error", measure, high=1.0)
    (outcome,) = judge_claims([claim], Results(runs, (Failure("regression", failed, "ConvergenceError: no"),)))
    assert len(outcome.values) == 1
    assert outcome.seeds == "1 of 1, 1 failed"
    assert outcome.verdict == "reproduced"


@pytest.mark.parametrize(("value", "verdict"), [(0.5, "holds, shortened"), (2.0, "not judged: shortened")])
def test_a_shortened_run_does_not_count_against_a_claim(value, verdict):
    outcome = ClaimResult(Claim("", "", lambda runs: 0.0, high=1.0), (value,), shortened=True)
    assert outcome.verdict == verdict


def test_limits_say_where_they_come_from():
    def criterion(**settings):
        return Claim("", "", lambda runs: 0.0, high=2.0, **settings).criterion

    assert criterion() == criterion(limit_from="paper") == "≤ 2"
    assert criterion(limit_from="theory") == "≤ 2 (theory)"
    assert criterion(limit_from="figure") == "≤ 2 (from a figure)"
    assert criterion(limit_from="own") == "≤ 2 (own limit)"
    with pytest.raises(ValueError, match="limit_from must be one of paper, theory, figure, own, got 'picture'"):
        criterion(limit_from="picture")


@pytest.mark.parametrize(
    ("low", "high", "text"), [(None, 2.0, "≤ 2"), (1.0, None, "≥ 1"), (1.0, 2.0, "between 1 and 2")]
)
def test_criteria_are_told_in_words(low, high, text):
    limits = {name: value for name, value in (("low", low), ("high", high)) if value is not None}
    assert Claim("", "", lambda runs: 0.0, **limits).criterion == text


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ((1.0,), "1"),
        ((1.0, 1.0), "1"),
        ((1.0, 3.0), "2 ± 1"),
        ((40.0, 80.0), "60 ± 30"),
        ((0.01, 0.02), "0.015 ± 0.007"),
        ((1.0, float("inf")), "1, inf"),
    ],
)
def test_mean_and_spread_are_told_where_there_are_any(values, text):
    assert spread(values) == text


def test_all_claims_say_what_is_measured_and_have_a_limit():
    for experiment in experiments().values():
        for claim in experiment.claims:
            assert claim.statement
            assert claim.quantity
            assert claim.low > -float("inf") or claim.high < float("inf")
