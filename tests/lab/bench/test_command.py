"""From options to files."""

import json

import pytest

from resolvent_lab.bench import rows
from resolvent_lab.bench.aims import summary
from resolvent_lab.bench.growth import AXES, growth
from resolvent_lab.bench.markdown import BEGIN, END
from resolvent_lab.bench.plots import draw
from resolvent_lab.bench.records import cost
from resolvent_lab.bench.tables import tables
from resolvent_lab.cli import main


@pytest.fixture(scope="module")
def series():
    return growth("cpu", rounds=1, seconds=0.0, limit=2)


def test_growth_has_a_point_for_each_value(series):
    assert set(series) == {*AXES, "memory"}
    assert [point["value"] for point in series["depth"]] == [1]
    assert all(point["iterations"] > 0 for axis in AXES for point in series[axis] if axis != "tolerance")
    assert series["tolerance"][-1]["iterations"] > series["tolerance"][0]["iterations"]
    assert set(series["memory"][0]["bytes"]) == {"explicit", "store", "checkpoint", "reversible"}
    assert len(series["tolerance"]) == len(AXES["tolerance"][1])


def test_growth_is_drawn_and_tabled(series, tmp_path):
    assert all(path.stat().st_size > 1000 for path in draw(series, tmp_path))
    text = tables({"records": [], "growth": {"machine": "a test", **series}})
    assert text.count("### B5") == len(AXES) + 1


def test_the_command_measures_and_writes_a_page(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(rows.ROWS, "B1", (lambda theta, device: small(theta, device),))
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    (tmp_path / "absent.py").write_text("import a_library_that_nobody_has\n")
    effort = ["--theta", "0.5", "--rounds", "2", "--seconds", "0", "--kinds", "eager", "--skip", "layer"]
    peers = ["--peers", "absent", "--peers-from", str(tmp_path)]
    main(["bench", "--rows", "B1", *effort, *peers, "--out", str(tmp_path), "--write", str(page)])
    (record,) = json.loads((tmp_path / "results.json").read_text())["records"]
    assert "a_library_that_nobody_has" in record["absent"][0]
    assert len(record["contenders"]["resolvent"]["train"]) == 2
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "| eager | own network, nothing declared, B1 | 3 |" in text
    assert "old" not in text
    assert "B1: regression, theta = 0.5" in capsys.readouterr().out


def test_results_are_shown_together_and_later_ones_win(tmp_path, series):
    first, second = record(10.0), record(3.0)
    first["contenders"]["recorded"] = entry(5.0, "graph", 1e-6)
    first["failures"] = {"resolvent": "it had failed", "other": "it failed"}
    runs = [
        {"records": [first, record(4.0, theta=1.0)], "growth": {"machine": "a test", **series}},
        {"records": [second], "growth": {}},
    ]
    for n, run in enumerate(runs):
        (tmp_path / f"{n}.json").write_text(json.dumps(run))
    main(["bench", "--from", str(tmp_path / "0.json"), str(tmp_path / "1.json"), "--out", str(tmp_path)])
    results = json.loads((tmp_path / "results.json").read_text())
    assert [each["contenders"]["resolvent"]["train"] for each in results["records"]] == [[3.0] * 2, [4.0] * 2]
    # Contenders of a kind that was not measured again are kept.
    assert list(results["records"][0]["contenders"]) == ["recorded", "explicit", "resolvent"]
    assert list(results["records"][0]["failures"]) == ["other"]
    assert (tmp_path / "tables.md").read_text() == tables(results)
    assert (tmp_path / "growth.png").exists()


def test_ratios_are_to_the_fastest_explicit_network_of_the_same_kind():
    measured = record(2.0)
    measured["contenders"] |= {
        "explicit, torch.compile": entry(0.8, "compiled"),
        "explicit, max-autotune": entry(0.5, "compiled"),
        "resolvent, compiled": entry(1.5, "compiled", 1e-6),
        "recorded": entry(1.5, "graph", 1e-6),
    }
    assert cost(measured, "resolvent") == [2.0] * 3
    assert cost(measured, "resolvent, compiled") == [3.0] * 3
    assert cost(measured, "explicit, torch.compile") == [1.6] * 3
    assert cost(measured, "recorded") is None


def test_what_misses_the_tolerance_is_marked_and_not_compared():
    measured = record(2.0, residual=1e-5) | {"tried": {"peer": []}}
    measured["contenders"] |= {"resolvent exact": entry(4.0, "eager", 1e-6), "peer": entry(8.0, "eager", 1e-6)}
    measured["contenders"]["resolvent, mode"] = entry(1.0, "compiled", 1e-6)
    assert "| **1e-05** |" in tables({"records": [measured], "growth": {}})
    text = summary({"records": [measured], "growth": {}})
    assert "rs.fields.MLP" not in text
    assert "| B1 regression, theta = 0.5 | 2.00 (2.00-2.00) |" in text  # the accurate one of the same kind


def test_an_aim_is_met_if_all_medians_are_below_it():
    met = [record(2.0), record(3.0, theta=1.0)]
    assert "| eager | `rs.fields.MLP`, B1 | 3 | 2.00, 3.00 | met |" in shown(met)
    assert "| 2.00, 3.10 | **missed** |" in shown([met[0], record(3.1, theta=1.0)])
    networks = [record(n, row="B9", title="512 samples", network=f"network {n}") for n in (1.0, 2.0, 9.0)]
    assert "| eager | five layers in the plane, 512 samples, B9 | 2.5 | 2.00 (1.00-9.00) | met |" in shown(networks)
    unsolved = record(1.0, residual=1e-5, row="B9", title="512 samples", network="network 4")
    assert "| 2.00 (1.00-9.00); not all to the tolerance | **missed** |" in shown([*networks, unsolved])
    text = tables({"records": networks, "growth": {}})
    assert "| 512 samples | 0.5 | 3 of 3 | 2.00 (1.00-9.00) | 2.00 (1.00-9.00) | 1.00 (1.00-1.00) |" in text


def shown(records):
    return summary({"records": records, "growth": {}})


def entry(seconds, kind, residual=None):
    found = {"kind": kind, "first_steps": 0.0, "train": [seconds] * 2, "infer": [seconds] * 2, "peak_bytes": 8}
    return found if residual is None else found | {"residual": residual, "gradient_error": 1e-6}


def record(seconds, theta=0.5, residual=1e-6, row="B1", title="regression", network=""):
    contenders = {"explicit": entry(1.0, "eager"), "resolvent": entry(seconds, "eager", residual)}
    where = {"machine": "1 CPU", "absent": [], "row": row, "title": title, "network": network}
    found = {"theta": theta, "tolerance": 1e-6, "failures": {}, "tried": {}}
    return {**where, **found, "contenders": contenders}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--rows", "B99"], "there is no row 'B99': choose among B1, B2, B3, B4, B5"),
        (["--rows", "B1", "--kinds", "lazy"], "there is no kind 'lazy': choose among eager, compiled, graph"),
        (["--from", "nowhere.json"], "cannot read the results in nowhere.json"),
    ],
)
def test_wrong_input_is_refused_in_a_line(tmp_path, capsys, options, words):
    with pytest.raises(SystemExit) as stopped:
        main(["bench", *options, "--out", str(tmp_path)])
    assert stopped.value.code == 2
    assert words in capsys.readouterr().err


def small(theta, device):
    from resolvent_lab.bench.networks import regression

    return regression(theta, device, training=1)
