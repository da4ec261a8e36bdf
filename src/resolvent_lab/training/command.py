"""The commands `train`, `evaluate`, `predict` and `diagnose`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from resolvent_lab.command import Command

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser


def _train_arguments(parser: "ArgumentParser") -> None:
    from resolvent_lab.training.configuration import add_arguments

    add_arguments(parser)


def _train(**settings: Any) -> None:
    from jsonargparse import Namespace

    from resolvent_lab.training.fit import train

    _print(train(Namespace(**settings)))


def _run_arguments(parser: "ArgumentParser") -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a run, the --out of resolvent train")
    parser.add_argument("--weights", choices=("best", "last"), default="best", help="of which epoch; best by default")


def _part_arguments(parser: "ArgumentParser") -> None:
    _run_arguments(parser)
    parser.add_argument("--part", choices=("train", "validation", "test"), default="test", help="test by default")
    parser.add_argument("--file", type=Path, help="other data with targets, in place of a part")


def _evaluate(**options: Any) -> None:
    from resolvent_lab.training.evaluate import evaluate

    _print(evaluate(**options))


def _predict_arguments(parser: "ArgumentParser") -> None:
    _run_arguments(parser)
    parser.add_argument("file", type=Path, metavar="FILE", help="inputs, of the form of the training data")
    parser.add_argument(
        "--to", type=Path, default=Path("predictions.csv"), help="ends in .csv or .npz; predictions.csv"
    )


def _predict(run: Path, file: Path, to: Path, weights: str) -> None:
    from resolvent_lab.training.predict import predict

    print(f"wrote {predict(run, file, to, weights)} predictions to {to}")


def _diagnose_arguments(parser: "ArgumentParser") -> None:
    _part_arguments(parser)
    parser.add_argument("--samples", type=int, default=32, help="how many to look at; 32 by default")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for text and figures; RUN/diagnosis by default")


def _diagnose(run: Path, out: Path | None, **options: Any) -> None:
    from resolvent_lab.training.diagnose import diagnose

    folder = run / "diagnosis" if out is None else out
    print(diagnose(run, folder, **options))
    print(f"figures are in {folder}")


def _print(metrics: dict[str, Any]) -> None:
    for name, value in metrics.items():
        if isinstance(value, dict):
            _print({f"{name} {key}": each for key, each in value.items() if isinstance(each, float)})
        else:
            print(f"{name:20} {value:.6g}" if isinstance(value, float) else f"{name:20} {value}")


TRAIN = Command(
    "train",
    "Train a network on your own data: resolvent train CONFIG.yaml [--key value ...].",
    _train_arguments,
    _train,
    config_first=True,
    extra="training",
)
EVALUATE = Command(
    "evaluate", "Measure a trained network on held-out data.", _part_arguments, _evaluate, extra="training"
)
PREDICT = Command(
    "predict", "Write the predictions of a trained network for a file.", _predict_arguments, _predict, extra="training"
)
DIAGNOSE = Command(
    "diagnose",
    "Write spectra, stability, iterations and certified radii of a trained network, with figures.",
    _diagnose_arguments,
    _diagnose,
    extra="training",
)
