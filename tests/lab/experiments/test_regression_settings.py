"""The settings of the regression that the paper leaves open: the penalty, the schedule and the start."""

import pytest
import torch

from resolvent_lab.experiments.catalogue import experiments
from resolvent_lab.experiments.regression import model as regression
from seeding import shifted


def regression_config(**settings):
    return regression.RegressionConfig(theta=0.5, alpha_div=1.0, seed=0, **settings)


def test_an_unknown_schedule_of_the_regression_is_refused():
    with pytest.raises(ValueError, match="schedule must be one of plateau, constant, got 'cosine'"):
        regression_config(schedule="cosine")


@pytest.mark.parametrize(("schedule", "reduced"), [("plateau", True), ("constant", False)])
def test_only_the_schedule_of_the_paper_reduces_the_learning_rate(schedule, reduced):
    optimizers = regression.Regression(regression_config(schedule=schedule)).configure_optimizers()
    assert isinstance(optimizers, dict) is reduced
    if reduced:
        scheduler = optimizers["lr_scheduler"]
        for _ in range(60):  # the error does not fall, and patience is 50
            scheduler.step(1.0)
        assert scheduler.get_last_lr() == pytest.approx([0.7e-3])


def test_the_exact_penalty_of_the_regression_is_what_its_estimate_has_as_mean():
    torch.manual_seed(shifted(0))
    networks = {exact: regression.Regression(regression_config(exact=exact)) for exact in (True, False)}
    networks[False].load_state_dict(networks[True].state_dict())
    ((x, target),) = regression.data(regression_config()).batches
    x, target = x.double(), target.double()

    def terms(exact):
        found = networks[exact].double().terms((x, target))
        return torch.stack([found["divergence"], found["jacobian"]]).detach()

    exact = terms(True)
    torch.testing.assert_close(terms(True), exact)
    estimates = torch.stack([terms(False) for _ in range(200)])
    assert (estimates.std(0) > 0).all()
    # Five standard errors of the mean.
    assert ((estimates.mean(0) - exact).abs() <= 5 * estimates.std(0) / 200**0.5).all()


@pytest.mark.parametrize("experiment", ["regression", "stiff", "lotka-volterra", "mnist"])
def test_the_paper_s_experiments_start_from_its_weights(experiment):
    assert {config.init for config in experiments()[experiment].configs(False, None, 1)} == {"xavier"}
