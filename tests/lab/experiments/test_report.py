"""Every experiment for an epoch or two, from training to the report."""

import dataclasses
import json
import re
import shutil

import pytest
import torch

from resolvent_lab import strict_json
from resolvent_lab.command import Interrupted
from resolvent_lab.experiments import reproduce
from resolvent_lab.experiments.catalogue import chosen, experiments
from resolvent_lab.experiments.lotka_volterra import model as lotka_volterra
from resolvent_lab.experiments.mnist import columns
from resolvent_lab.experiments.regression import model as regression
from resolvent_lab.experiments.results import collect, read
from resolvent_lab.experiments.run import folder_of, is_finished, load
from resolvent_lab.experiments.stiff import model as stiff
from resolvent_lab.experiments.sweep import SweepError, sweep
from resolvent_lab.experiments.tables import write_summary
from resolvent_lab.experiments.train import train

FIGURES = {
    "regression": ("data", "training", "iterations", "fields", "spectra", "spectra-stages"),
    "stiff": ("data", "trajectories", "slopes"),
    "lotka-volterra": ("data", "fields", "extrapolation"),
    "mnist": ("main", "noise", "digits", "spectra", "certified"),
}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def _short_measurements():
    """Learned fields are followed for a tenth of the time, and few images are looked at by narrow networks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lotka_volterra, "FAR", 20.0)
        patch.setattr(stiff, "FINE_STEPS", 100)
        small = {"limit": 8, "train_size": 20, "batch_size": 10, "draws": 1, "channels": 2, "schedule": "plateau"}
        patch.setattr(columns, "_QUICK", small)
        yield


@pytest.fixture(scope="module", params=list(FIGURES))
def results(request, tmp_path_factory):
    """Two short runs of an experiment, explicit and implicit."""
    out = tmp_path_factory.mktemp(request.param)
    configs = experiments()[request.param].configs(True, [0.0, 0.5], 1)
    kept = {config.theta: dataclasses.replace(config, epochs=2) for config in configs}
    tasks = [(request.param, config) for config in kept.values()]
    sweep(tasks, out, jobs=1)
    return request.param, out, tasks


def test_a_run_leaves_its_configuration_weights_curves_and_metrics(results):
    experiment, out, tasks = results
    for _, config in tasks:
        folder = folder_of(experiment, config, out)
        assert {path.name for path in folder.iterdir()} == {
            "config.json",
            "curves.json",
            "metrics.json",
            "weights.safetensors",
        }
        run = load(folder)
        assert run.config == config
        assert set(run.versions) == {"resolvent", "torch", "lightning", "python"}
        assert run.curves()["epoch"] == [1, 2]
        assert all(len(values) == 2 for values in run.curves().values())


def test_the_trained_network_is_the_one_that_was_measured(results):
    experiment, out, tasks = results
    torch.set_default_dtype(torch.float32)
    run = load(folder_of(experiment, tasks[1][1], out))
    again = run.network().measure(run.batches())
    assert again.keys() == run.metrics.keys()
    for name, value in again.items():
        if name == "evaluations":
            # In single precision, rounding decides whether one more step is made, and it depends on the threads.
            assert min(run.metrics[name], value) >= 1
        else:
            assert run.metrics[name] == pytest.approx(value, rel=1e-3, abs=1e-5), name


def test_finished_runs_are_not_repeated(results, capsys, monkeypatch):
    _, out, tasks = results
    monkeypatch.setattr("resolvent_lab.experiments.sweep.train", lambda *_: pytest.fail("trained again"))
    sweep(tasks, out, jobs=1)
    assert "2 of 2 runs are finished already" in capsys.readouterr().out


def test_the_report_has_claims_figures_and_tables_and_needs_no_other_file(results):
    pytest.importorskip("matplotlib").use("Agg")
    from resolvent_lab.experiments.report import write_report

    experiment, out, _ = results
    torch.set_default_dtype(torch.float32)
    found = collect(out)
    page = write_report(out, found).read_text()
    assert page.count('<img alt="') == page.count("data:image/png;base64,") == len(FIGURES[experiment])
    for name in FIGURES[experiment]:
        for suffix in ("png", "pdf"):
            assert (out / "figures" / f"{experiment}-{name}.{suffix}").stat().st_size > 1000
    verdicts = re.findall(r'<tr class="(holds-shortened|not-judged-shortened|not-run)">', page)
    assert len(verdicts) == len(experiments()[experiment].claims)
    assert "not-judged-shortened" in verdicts  # after two epochs it cannot be otherwise
    assert "http" not in page
    assert 'name="viewport"' in page
    assert f'<a href="#{experiment}">' in page
    assert re.search(r"<td>(Figure|Table) \d+</td>", page)
    assert "Shortened: " in page
    assert "epochs 2 instead of" in page
    assert len(json.loads((out / "results.json").read_text())["runs"]) == len(found.runs) == 2


def test_the_summary_has_a_row_for_each_claim_and_each_configuration(results):
    name, out, tasks = results
    experiment, runs = experiments()[name], collect(out)
    lines = write_summary(out, runs).read_text().splitlines()
    rows = [line for line in lines if line.startswith("| ") and "---" not in line]
    assert len(rows) == 1 + len(experiment.claims) + len(experiment.tables(runs.runs)) * (1 + len(tasks))
    claims = strict_json.load(out / "summary.json")["claims"]
    assert [claim["quantity"] for claim in claims] == [claim.quantity for claim in experiment.claims]


def test_a_run_that_is_put_an_end_to_is_not_finished(tmp_path):
    config = regression.RegressionConfig(theta=0.0, alpha_div=0.0, seed=0, epochs=5)

    def stop(epoch):
        if epoch == 2:
            raise Interrupted(15)

    with pytest.raises(Interrupted):
        train("regression", config, tmp_path, on_epoch=stop)
    assert not list((tmp_path / "runs" / "regression").glob("[!.]*"))
    assert not is_finished("regression", config, tmp_path)


def test_a_seed_decides_a_run(tmp_path):
    config = regression.RegressionConfig(theta=0.5, alpha_div=0.5, seed=3, epochs=2)
    metrics = []
    for out in (tmp_path / "a", tmp_path / "b"):
        train("regression", config, out)
        metrics.append(load(folder_of("regression", config, out)).metrics)
    assert metrics[0] == metrics[1]


def test_other_settings_under_the_same_name_are_refused(tmp_path):
    config = regression.RegressionConfig(theta=0.0, alpha_div=0.0, seed=0, epochs=1)
    train("regression", config, tmp_path)
    with pytest.raises(ValueError, match=r"'epochs': \(1, 2\)"):
        is_finished("regression", dataclasses.replace(config, epochs=2), tmp_path)


def test_a_run_from_before_a_setting_existed_had_its_default(tmp_path):
    config = regression.RegressionConfig(theta=0.0, alpha_div=0.0, seed=0, epochs=1)
    train("regression", config, tmp_path)
    path = folder_of("regression", config, tmp_path) / "config.json"
    described = strict_json.load(path)
    del described["config"]["init"]
    strict_json.dump(described, path)
    assert is_finished("regression", config, tmp_path)
    with pytest.raises(ValueError, match="'init'"):
        is_finished("regression", dataclasses.replace(config, init="xavier_unit"), tmp_path)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder with one run."""
    out = tmp_path_factory.mktemp("finished")
    train("regression", regression.RegressionConfig(theta=0.0, alpha_div=0.0, seed=0, epochs=1), out)
    return out


DAMAGES = {
    "truncated weights": ("weights.safetensors", lambda content: content[:-200]),
    "changed weights": ("weights.safetensors", lambda content: content[:-100] + b"!" * 100),
    "truncated metrics": ("metrics.json", lambda content: content[:-10]),
    "no metrics": ("metrics.json", lambda content: None),
    "empty configuration": ("config.json", lambda content: b""),
    "other JSON": ("config.json", lambda content: b"[]"),
    "no curves": ("curves.json", lambda content: None),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_run_is_named_and_repeated(finished, tmp_path, damage, capsys):
    out = shutil.copytree(finished, tmp_path / "out")
    (folder,) = (out / "runs" / "regression").iterdir()
    name, change = DAMAGES[damage]
    content = change((folder / name).read_bytes())
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    assert collect(out).runs == ()
    assert f"{folder} is damaged: " in capsys.readouterr().out
    config = regression.RegressionConfig(theta=0.0, alpha_div=0.0, seed=0, epochs=1)
    sweep([("regression", config)], out, jobs=1)
    told = capsys.readouterr().out
    assert f"{folder} is damaged: " in told
    assert "0 of 1 runs are finished already" in told
    assert len(collect(out).runs) == 1
    assert is_finished("regression", config, out)


@pytest.mark.parametrize(
    ("entry", "message"),
    [({"experiment": "sine"}, "unknown experiment, 'sine'"), ({"config": {"new": 1}}, "does not know: ['new']")],
)
def test_a_run_of_another_version_is_left_out_and_not_touched(finished, tmp_path, entry, message, capsys):
    out = shutil.copytree(finished, tmp_path / "out")
    (folder,) = (out / "runs" / "regression").iterdir()
    described = strict_json.load(folder / "config.json")
    strict_json.dump(described | entry, folder / "config.json")
    assert collect(out).runs == ()
    assert message in capsys.readouterr().out
    config = regression.RegressionConfig(theta=0.0, alpha_div=0.0, seed=0, epochs=1)
    with pytest.raises(ValueError, match="holds a run"):
        is_finished("regression", config, out)


@pytest.mark.parametrize(("settings", "message"), [({"seeds": 0}, "seeds"), ({"jobs": -1}, "jobs")])
def test_wrong_numbers_are_told(tmp_path, settings, message):
    given = {"quick": True, "theta": None, "seeds": 1, "jobs": 1} | settings
    with pytest.raises(ValueError, match=message):
        reproduce.train("stiff", out=tmp_path, **given)


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_run_that_fails_is_told_in_the_end_and_the_others_are_finished(tmp_path, jobs):
    good = regression.RegressionConfig(theta=0.0, alpha_div=0.0, seed=0, epochs=1)
    bad = dataclasses.replace(good, seed=1, init="zeros")
    with pytest.raises(SweepError, match=r"1 of 2 runs failed:\nregression .*seed1: ValueError: init must be"):
        sweep([("regression", bad), ("regression", good)], tmp_path, jobs)
    assert is_finished("regression", good, tmp_path)
    (failure,) = collect(tmp_path).failures
    assert failure.config == bad
    assert failure.error.startswith("ValueError: init must be")


@pytest.mark.slow
def test_a_report_is_written_with_the_failed_runs_in_it_and_they_are_tried_again(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib").use("Agg")
    torch.set_default_dtype(torch.float32)
    tasks = [regression.RegressionConfig(theta=theta, alpha_div=0.0, seed=0, epochs=1) for theta in (0.0, 0.5)]
    monkeypatch.setitem(
        experiments(), "regression", dataclasses.replace(experiments()["regression"], configs=lambda *_: tasks)
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(regression.Regression, "terms", _fail_if_implicit(regression.Regression.terms))
        with pytest.raises(SweepError, match="1 of 2 runs failed"):
            reproduce.reproduce("regression", jobs=1, out=tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "1 runs failed" in page
    assert "<td>theta0.5-div0-seed0</td><td>ArithmeticError: on purpose</td>" in page
    assert "0 of 0, 1 failed" in page
    assert "ArithmeticError: on purpose" in (tmp_path / "summary.md").read_text()
    assert json.loads((tmp_path / "results.json").read_text())["failures"][0]["config"]["theta"] == 0.5
    reproduce.reproduce("regression", jobs=1, out=tmp_path)
    assert "failed run" not in (tmp_path / "report.html").read_text()
    assert len(collect(tmp_path).runs) == 2


def _fail_if_implicit(terms):
    def wrapped(self, batch):
        if self.config.theta > 0:
            raise ArithmeticError("on purpose")
        return terms(self, batch)

    return wrapped


def test_numbers_that_are_not_finite_come_back_from_valid_json(tmp_path):
    path = tmp_path / "numbers.json"
    strict_json.dump({"a": [float("inf"), -float("inf"), 1.5], "b": float("nan"), "c": "text"}, path)
    json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    found = strict_json.load(path)
    assert found["a"] == [float("inf"), -float("inf"), 1.5]
    assert found["b"] != found["b"]
    assert found["c"] == "text"


def test_an_unknown_experiment_is_told():
    with pytest.raises(ValueError, match="'sine': take one of regression, stiff"):
        chosen("sine")


def test_a_folder_without_results_is_told(tmp_path):
    with pytest.raises(ValueError, match=r"results\.json"):
        read(tmp_path)
