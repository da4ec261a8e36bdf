"""Tables from CSV and Parquet files, as columns by name. Wrong files are refused with what is wrong in them."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

TABLES = (".csv", ".tsv", ".parquet")


def read_table(file: Path) -> Any:
    """A table as pandas reads it. The first line of a CSV file has the names of its columns."""
    import pandas as pd  # type: ignore[import-untyped]

    check_file(file)
    try:
        if file.suffix == ".parquet":
            table = pd.read_parquet(file)
        else:
            table = pd.read_csv(file, sep="\t" if file.suffix == ".tsv" else ",")
    except ImportError:
        raise ValueError('Parquet files need pyarrow: pip install "resolvent[training]"') from None
    except (ValueError, OSError) as error:  # pandas' and pyarrow's own errors derive from these
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(f"{file} cannot be read as a table: {reason}") from None
    if not len(table):
        raise ValueError(f"{file} has no rows.")
    table.columns = [str(name).strip() for name in table.columns]
    return table


def read_arrays(file: Path) -> dict[str, Any]:
    """The arrays of an NPZ file by name. Arrays of objects, which would be pickled, are refused."""
    import zipfile

    check_file(file)
    try:
        with np.load(file, allow_pickle=False) as arrays:
            return dict(arrays)
    except (OSError, TypeError, ValueError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise ValueError(f"{file} cannot be read as an NPZ file of plain arrays: {error}") from None


def data_file(file: Path) -> Path:
    """The file; raises if its name says that it is neither a table nor an NPZ file."""
    if Path(file).suffix not in (*TABLES, ".npz"):
        raise ValueError(f"file must end in {', '.join(TABLES)} or .npz, got {file}.")
    return Path(file)


def check_file(file: Path) -> None:
    if not file.is_file():
        raise ValueError(f"there is no file {file}.")


def expect(names: list[str], present: Any, file: Path, what: str = "column") -> None:
    """Raises if a name is not there."""
    missing = [name for name in names if name not in present]
    if missing:
        have = ", ".join(map(str, list(present)[:12])) + (", ..." if len(present) > 12 else "")
        raise ValueError(f"{file} has no {what} {', '.join(map(repr, missing))}; it has {have}.")


def numbers(table: Any, names: list[str], file: Path) -> Tensor:
    """Columns as numbers, (rows, columns), in torch's default dtype."""
    expect(names, table.columns, file)
    for name in names:
        column = table[name]
        if column.dtype.kind not in "biuf":
            text = next((value for value in column if isinstance(value, str)), column.iloc[0])
            raise ValueError(
                f"column {name!r} of {file} holds {text!r}, which is no number: choose columns with inputs, or "
                "encode it."
            )
        if column.isna().any():
            row = int(np.flatnonzero(column.isna().to_numpy())[0])
            raise ValueError(
                f"column {name!r} of {file} has {int(column.isna().sum())} missing values, the first in row {row + 1}: "
                "fill them in, or leave the rows out."
            )
    return torch.from_numpy(table[names].to_numpy(np.float64, copy=True)).to(torch.get_default_dtype())


def classes_of(labels: Any, file: Path, name: str) -> tuple[str, ...]:
    """The names of the classes, in order.

    Arguments:
        labels: an array (n,) of text, truth values or whole numbers.
        file, name: where they are from.
    """
    if labels.dtype.kind == "f" and np.isfinite(labels).all() and (labels != np.round(labels)).any():
        value = float(labels[labels != np.round(labels)][0])
        raise ValueError(
            f"{name!r} of {file} holds {value!r}, but classes are text or whole numbers: set task to regression."
        )
    missing = [label is None or label != label for label in labels]
    if any(missing):
        raise ValueError(f"{name!r} of {file} has {sum(missing)} missing values.")
    found = sorted(set(labels.tolist()), key=lambda label: (isinstance(label, str), label))
    if len(found) < 2:
        raise ValueError(f"{name!r} of {file} has one class only, {found[0]!r}: classification needs two or more.")
    return tuple(label_name(label) for label in found)


def class_numbers(labels: Any, classes: tuple[str, ...], file: Path, name: str) -> Tensor:
    """The number of each label among the classes."""
    known = {label: number for number, label in enumerate(classes)}
    named = [label_name(label) for label in labels]
    unknown = sorted(set(named) - set(known))
    if unknown:
        raise ValueError(f"{name!r} of {file} has classes that the network does not know: {', '.join(unknown[:5])}.")
    return torch.tensor([known[label] for label in named])


def label_name(label: Any) -> str:
    """A label as text: 3 for 3.0."""
    return str(int(label)) if isinstance(label, float | np.floating) and label == int(label) else str(label)
