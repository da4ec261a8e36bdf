"""Data of the user: read as they are, and refused with what is wrong."""

import re
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from lab.training.own_data import arrays, decays, pictures, plane, rings
from resolvent_lab.training.batches import Batches, Progress, samples
from resolvent_lab.training.pictures import Pictures
from resolvent_lab.training.series import Series
from resolvent_lab.training.tables import Table
from resolvent_lab.training.toys import PredatorPrey, Sine, StiffSystem


def test_a_csv_file(tmp_path):
    data = Table(rings(tmp_path), "ring")
    facts = data.facts
    assert (facts.task, facts.shape, facts.inputs, facts.classes) == (
        "classification",
        (2,),
        ("x1", "x2"),
        ("inner", "outer"),
    )
    assert [data.part(name).size for name in ("train", "validation", "test")] == [42, 6, 12]
    outside = data.all.inputs.square().sum(1) > 1.2
    assert torch.equal(data.all.targets, outside.long())
    standardized = (data.part("train").inputs - torch.tensor(facts.mean)) / torch.tensor(facts.scale)
    torch.testing.assert_close(standardized.mean(0), torch.zeros(2))
    torch.testing.assert_close(standardized.std(0, correction=0), torch.ones(2))


def test_a_parquet_file(tmp_path):
    data = Table(plane(tmp_path), "sum", "regression")
    torch.testing.assert_close(data.all.targets[:, 0], 5 + 10 * data.all.inputs.sum(1))
    assert data.facts.targets == ("sum",)
    assert data.facts.outputs == 1
    assert len(data.facts.target_mean) == 1
    some = Table(tmp_path / "plane.parquet", ["sum", "c"], "regression", ["a", "b"])
    assert some.facts.outputs == 2
    assert some.facts.shape == (2,)


def test_arrays(tmp_path):
    data = Table(arrays(tmp_path), "targets")
    assert data.facts.shape == (1, 8, 8)
    assert data.facts.classes == ("0", "1")
    assert torch.equal(data.all.targets, (data.all.inputs.mean((1, 2, 3)) > 0).long())


def test_series(tmp_path):
    data = Series(decays(tmp_path))
    assert data.all.targets.shape == (12, 5, 2)
    assert data.all.times.shape == (12, 5)
    expected = data.all.inputs[:, None] * torch.exp(-data.all.times[:, :, None] * torch.tensor([1.0, 2.0]))
    torch.testing.assert_close(data.all.targets, expected, atol=1e-5, rtol=0)
    assert data.facts.targets == ("y", "z")
    np.savez(tmp_path / "d.npz", times=data.all.times[0].numpy(), values=data.all.targets.numpy())
    torch.testing.assert_close(Series(tmp_path / "d.npz").all.targets, data.all.targets)


def test_one_series_is_cut_into_pieces(tmp_path):
    (tmp_path / "one.csv").write_text("time,y\n" + "".join(f"{t},{t * t}\n" for t in range(25)))
    data = Series(tmp_path / "one.csv", series=None, length=5)
    assert data.all.times.shape == (5, 5)
    assert torch.equal(data.all.targets[..., 0], data.all.times**2)


def test_a_folder_of_pictures(tmp_path):
    data = Pictures(path=pictures(tmp_path))
    assert data.facts.shape == (1, 8, 8)
    assert data.facts.classes == ("dark", "light")
    train = data.part("train")
    assert torch.equal(train.targets, (train.inputs.mean((1, 2, 3)) > 0.4).long())
    found, names = data.read_inputs(tmp_path / "pictures" / "dark", data.facts, targets=False)
    assert found.size == 8
    assert names[0] == "0.png"
    labelled, _ = data.read_inputs(tmp_path / "pictures", data.facts, targets=True)
    assert labelled.targets.tolist() == [0] * 8 + [1] * 8


def test_order_follows_from_seed_and_epoch():
    data = samples(torch.arange(10.0)[:, None])

    def order(epoch, done=0, **ranks):
        return [b.numbers.tolist() for b in Batches(data, 4, 7, lambda: Progress(epoch, done), **ranks)]

    assert order(0) == order(0)
    assert order(0) != order(1)
    assert sorted(chain.from_iterable(order(0))) == list(range(10))
    assert order(1, 2) == order(1)[2:], "a run that is resumed goes on"
    ranks = [order(0, rank=rank, ranks=2) for rank in range(2)]
    assert [len(batch) for batch in ranks[0]] == [len(batch) for batch in ranks[1]] == [4, 1]
    assert sorted(chain.from_iterable(ranks[0] + ranks[1])) == list(range(10))


@pytest.mark.parametrize(
    ("text", "arguments", "words"),
    [
        ("a,k\n1,x\n2,y\n", {"target": "z"}, "has no column 'z'; it has a, k"),
        ("a,k\n1,x\n2,y\n", {"target": "z", "inputs": ["a"]}, "has no column 'z'; it has a, k"),
        ("a,k\n1,x\n2,y\n", {"target": "k", "inputs": ["b"]}, "has no column 'b'"),
        ("a,k\n1,x\n2,x\n", {"target": "k"}, "one class only, 'x'"),
        ("a,k\n1,x\n,y\n", {"target": "k"}, "has 1 missing values, the first in row 2"),
        ("a,k\n1,0.5\n2,1\n", {"target": "k"}, "holds 0.5, but classes are text or whole numbers"),
        ("a,k\n1,\n2,x\n", {"target": "k"}, "'k' of"),
        ("a,k\n1,x\n2,y\n", {"target": "k", "task": "regression"}, "'x', which is no number"),
        ("a,k\ninf,x\n2,y\n3,y\n", {"target": "k"}, "the inputs hold nan or inf in 1 entries"),
        ("a,k\n", {"target": "k"}, "has no rows"),
        ("", {"target": "k"}, "cannot be read as a table"),
        ('a,k\n"1,x\n', {"target": "k"}, "cannot be read as a table"),
        ("a,k\n1,x\n2,y\n", {"target": "k"}, "2 samples cannot be split"),
    ],
)
def test_wrong_tables(tmp_path, text, arguments, words):
    (tmp_path / "t.csv").write_text(text)
    data = Table(tmp_path / "t.csv", validation=0.4, test=0.4, **arguments)
    with pytest.raises(ValueError, match=re.escape(words)) as error:
        assert data.facts
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("series,t,y\na,0,1\n", "has no column 'time'"),
        ("series,time,y\na,0,1\na,1,1\nb,0,1\n", "must have one length, got 1 to 2 rows"),
        ("series,time,y\na,0,1\na,0,2\n", "the times of series 'a' in"),
        ("series,time\na,0\na,1\n", "has no columns of states"),
        ("series,time,y\na,0,1\nb,0,1\n", "have 1 times"),
    ],
)
def test_wrong_series(tmp_path, text, words):
    (tmp_path / "s.csv").write_text(text)
    with pytest.raises(ValueError, match=re.escape(words)):
        assert Series(tmp_path / "s.csv").all


def test_wrong_arrays(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, inputs=np.zeros((4, 2)), targets=np.zeros(3))
    with pytest.raises(ValueError, match="must have a row for each of the 4 inputs"):
        assert Table(path, "targets").all
    np.savez(path, inputs=np.array([{"a": 1}], dtype=object), targets=np.zeros(1))
    with pytest.raises(ValueError, match="cannot be read as an NPZ file of plain arrays"):
        assert Table(path, "targets").all
    path.write_bytes(b"PK junk")
    with pytest.raises(ValueError, match="cannot be read as an NPZ file"):
        assert Table(path, "targets").all
    with pytest.raises(ValueError, match="there is no file"):
        assert Table(Path("nowhere.csv"), "x").all
    with pytest.raises(ValueError, match=r"file must end in \.csv"):
        Table(Path("table.xlsx"), "x")


def test_a_damaged_picture(tmp_path):
    folder = pictures(tmp_path)
    (folder / "dark" / "0.png").write_bytes(b"no picture")
    with pytest.raises(ValueError, match=r"cannot read the picture .*0\.png"):
        assert Pictures(path=folder).facts


def test_the_data_of_the_paper_s_examples(tmp_path: Path) -> None:
    sine = Sine(count=20).all
    assert_close(sine.targets, sine.inputs.sin())
    stiff, cycles = StiffSystem(count=4).all, PredatorPrey(count=4).all
    assert_close(stiff.targets[..., 1] - stiff.targets[:, :1, 1], stiff.times, rtol=0, atol=1e-6)
    late = stiff.targets[stiff.targets[..., 1] > 2.5][:, 0]  # at rest, ten times the time constant behind the forcing
    assert_close(late, torch.full_like(late, np.cos(2)), rtol=0, atol=1e-3)
    prey, predators = cycles.targets.unbind(2)
    invariant = prey - prey.log() + 4 / 3 * predators - 2 / 3 * predators.log()
    assert_close(invariant, invariant[:, :1].expand(-1, 51), rtol=1e-5, atol=0)
    file = tmp_path / "more.csv"
    file.write_text("x,y\n1,0\n2,0\n")
    chosen, names = Sine(count=20).read_inputs(file, Sine(count=20).facts, targets=True)
    assert chosen.inputs.flatten().tolist() == [1.0, 2.0]
    assert names == [0, 1]
    file.write_text("series,time,prey,predators\n0,0,1,1\n0,1,1,2\n")
    chosen, _ = PredatorPrey(count=4).read_inputs(file, PredatorPrey(count=4).facts, targets=True)
    assert chosen.targets.tolist() == [[[1.0, 1.0], [1.0, 2.0]]]
    with pytest.raises(ValueError, match="count must be 3 or more"):
        Sine(count=2)
