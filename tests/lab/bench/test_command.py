"""From options to files."""

import json

import pytest

from resolvent_lab.bench import rows
from resolvent_lab.bench.growth import AXES, growth
from resolvent_lab.bench.plots import draw
from resolvent_lab.bench.tables import BEGIN, END, markdown
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
    run = {"machine": "a test", "absent": [], "rows": [], "growth": series}
    assert all(path.stat().st_size > 1000 for path in draw(run, tmp_path))
    assert markdown(run).count("### B5") == len(AXES) + 1


def test_the_command_measures_and_writes_a_page(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(rows.ROWS, "B1", (lambda theta, device: small(theta, device),))
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    (tmp_path / "absent.py").write_text("import a_library_that_nobody_has\n")
    options = [
        "--rows",
        "B1",
        "--theta",
        "0.5",
        "--rounds",
        "2",
        "--seconds",
        "0",
        "--skip",
        "compiled",
        "--out",
        str(tmp_path),
    ]
    main(["bench", *options, "--write", str(page), "--peers", "absent", "--peers-from", str(tmp_path)])
    results = json.loads((tmp_path / "results.json").read_text())
    assert "a_library_that_nobody_has" in results["absent"][0]
    (record,) = results["rows"]
    assert len(record["contenders"]["resolvent"]["train"]["turns"]) == 2
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "| resolvent |" in text
    assert "old" not in text
    assert "B1: regression, theta = 0.5" in capsys.readouterr().out


def test_results_are_shown_again_without_measuring(tmp_path, series):
    run = {"machine": "a test", "absent": [], "rows": [], "growth": series}
    (tmp_path / "given.json").write_text(json.dumps(run))
    main(["bench", "--from", str(tmp_path / "given.json"), "--out", str(tmp_path)])
    assert (tmp_path / "table.md").read_text() == markdown(run)
    assert (tmp_path / "growth.png").exists()


def test_what_misses_the_tolerance_is_marked_and_not_compared():
    def entry(seconds, residual):
        kind = {"seconds": [seconds] * 3, "ratio": [seconds] * 3, "turns": [seconds] * 3}
        return {"train": kind, "infer": kind, "peak_bytes": 8, "residual": residual, "gradient_error": 1e-6}

    contenders = {"explicit": entry(1.0, 0.0), "resolvent": entry(2.0, 1e-5), "resolvent exact": entry(4.0, 1e-6)}
    record = {"row": "B1", "title": "regression", "theta": 1.0, "tolerance": 1e-6, "failures": {}}
    record |= {"contenders": contenders | {"peer": entry(8.0, 1e-6)}, "tried": {"peer": []}}
    text = markdown({"machine": "a test", "absent": [], "rows": [record]})
    assert "| **1e-05** |" in text
    assert "2.00 (2.00-2.00) |\n" in text  # the peer in units of the contender that is accurate


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--rows", "B9"], "there is no row 'B9': choose among B1, B2, B3, B4, B5"),
        (["--from", "nowhere.json"], "cannot read the results in nowhere.json"),
    ],
)
def test_wrong_input_is_refused_in_a_line(tmp_path, capsys, options, words):
    with pytest.raises(SystemExit) as stopped:
        main(["bench", *options, "--out", str(tmp_path)])
    assert stopped.value.code == 2
    assert words in capsys.readouterr().err


def small(theta, device):
    from resolvent_lab.bench.rows import regression

    return regression(theta, device, training=1)
