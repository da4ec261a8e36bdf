"""`Table`: rows of a CSV, Parquet or NPZ file, for classification and regression."""

from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from resolvent_lab.training.batches import Samples, samples
from resolvent_lab.training.columns import (
    class_numbers,
    classes_of,
    data_file,
    expect,
    numbers,
    read_arrays,
    read_table,
)
from resolvent_lab.training.data import Data, standardization
from resolvent_lab.training.facts import Facts


class Table(Data):
    """Rows of a CSV, TSV, Parquet or NPZ file: some columns are inputs, others are targets.

    A CSV file begins with a line of names. In an NPZ file the inputs are one array (n, *shape), and the targets one
    array (n,) or (n, targets). The inputs of a table are standardized with the mean and deviation of the training rows,
    and so are the targets of a regression; errors are reported in the units of the file.

    Arguments:
        file: ends in .csv, .tsv, .parquet or .npz.
        target: name of the column or array to predict; a regression may have several columns.
        task: "classification", where the target may be text, or "regression".
        inputs: names of the columns; None takes all but the target. For an NPZ file the name of one array; None takes
            "inputs".
        standardize: whether inputs are standardized.
        batch_size: rows per batch.
        validation, test: the fractions of the rows that are held out.
        split_seed: of the split.
    """

    def __init__(
        self,
        file: Path,
        target: str | list[str],
        task: Literal["classification", "regression"] = "classification",
        inputs: list[str] | None = None,
        standardize: bool = True,
        batch_size: int = 64,
        validation: float = 0.1,
        test: float = 0.2,
        split_seed: int = 0,
    ) -> None:
        super().__init__(batch_size, validation, test, split_seed)
        self.file, self.task, self.standardize = data_file(file), task, standardize
        self.targets = [target] if isinstance(target, str) else list(target)
        if task == "classification" and len(self.targets) != 1:
            raise ValueError(f"a classification has one target, got {self.targets}.")
        self.inputs = inputs

    def read(self) -> Samples:
        found, targets = self._raw(self.file, self._inputs)
        if targets is None:
            expect(self.targets, self._table.columns, self.file)
        return samples(found, targets)

    @cached_property
    def _inputs(self) -> list[str]:
        """The names of the inputs."""
        if self.inputs is not None:
            both = sorted(set(self.inputs) & set(self.targets))
            if both or not self.inputs:
                raise ValueError(f"inputs must be names other than the target {self.targets}, got {self.inputs}.")
            return self.inputs
        if self.file.suffix == ".npz":
            return ["inputs"]
        expect(self.targets, self._table.columns, self.file)
        return [name for name in self._table.columns if name not in self.targets]

    @cached_property
    def _table(self) -> Any:
        return read_table(self.file)

    @cached_property
    def _classes(self) -> tuple[str, ...]:
        if self.task == "regression":
            return ()
        (name,) = self.targets
        return classes_of(self._target_column(self.file), self.file, name)

    def _target_column(self, file: Path) -> Any:
        (name,) = self.targets
        held = read_arrays(file) if file.suffix == ".npz" else self._table if file == self.file else read_table(file)
        expect([name], held, file, "array" if file.suffix == ".npz" else "column")
        return held[name] if file.suffix == ".npz" else held[name].to_numpy()

    def _raw(self, file: Path, inputs: list[str], classes: tuple[str, ...] | None = None) -> tuple[Tensor, Any]:
        """Inputs, and targets or None if the file has none."""
        if file.suffix == ".npz":
            return self._from_arrays(file, inputs, classes)
        table = self._table if file == self.file else read_table(file)
        found = numbers(table, inputs, file)
        if any(name not in table.columns for name in self.targets):
            return found, None
        if self.task == "regression":
            return found, numbers(table, self.targets, file)
        (name,) = self.targets
        known = self._classes if classes is None else classes
        return found, class_numbers(table[name].to_numpy(), known, file, name)

    def _from_arrays(self, file: Path, inputs: list[str], classes: tuple[str, ...] | None) -> tuple[Tensor, Any]:
        arrays = read_arrays(file)
        if len(inputs) != 1 or len(self.targets) != 1:
            raise ValueError(f"an NPZ file has one array of inputs and one target, got {inputs} and {self.targets}.")
        (name,), (target,) = inputs, self.targets
        expect([name, target] if file == self.file else [name], arrays, file, "array")
        for each in (name,) if self.task == "classification" else (name, target):
            if each in arrays and arrays[each].dtype.kind not in "biuf":
                raise ValueError(f"array {each!r} of {file} must hold numbers, got {arrays[each].dtype}.")
        found = torch.from_numpy(arrays[name]).to(torch.get_default_dtype())
        if found.dim() < 2:
            raise ValueError(f"array {name!r} of {file} must be (n, *shape), got {tuple(found.shape)}.")
        if target not in arrays:
            return found, None
        values = arrays[target]
        if len(values) != len(found) or values.ndim > (1 if self.task == "classification" else 2):
            raise ValueError(
                f"array {target!r} of {file} must have a row for each of the {len(found)} inputs, got "
                f"{tuple(values.shape)}."
            )
        if self.task == "regression":
            return found, torch.from_numpy(values).to(torch.get_default_dtype()).reshape(len(found), -1)
        known = classes_of(values, file, target) if classes is None else classes
        return found, class_numbers(values, known, file, target)

    @cached_property
    def facts(self) -> Facts:
        train = self.part("train")
        tabular = train.inputs.dim() == 2
        mean, scale = standardization(train.inputs) if self.standardize and tabular else ((), ())
        shift = standardization(train.targets) if self.task == "regression" else ((), ())
        names = self.targets if self.file.suffix != ".npz" else self._target_names(train.targets)
        return Facts(
            self.task,
            tuple(train.inputs.shape[1:]),
            tuple(self._inputs),
            tuple(names),
            self._classes,
            train.size,
            mean,
            scale,
            *shift,
        )

    def _target_names(self, targets: Tensor) -> list[str]:
        (name,) = self.targets
        return (
            [name] if targets.dim() == 1 or targets.shape[1] == 1 else [f"{name}{i}" for i in range(targets.shape[1])]
        )

    def read_inputs(self, file: Path, facts: Facts, targets: bool) -> tuple[Samples, list[Any]]:
        names = list(facts.inputs)
        found, known = self._raw(data_file(file), names, facts.classes)
        if targets and known is None:
            raise ValueError(f"{file} has no {', '.join(map(repr, self.targets))}, the target to compare with.")
        if tuple(found.shape[1:]) != facts.shape:
            raise ValueError(
                f"the inputs in {file} have shape {tuple(found.shape[1:])}, the network takes {facts.shape}."
            )
        if not bool(found.isfinite().all()):
            raise ValueError(f"the inputs in {file} hold nan or inf in {int((~found.isfinite()).sum())} entries.")
        return samples(found, known), list(range(len(found)))
