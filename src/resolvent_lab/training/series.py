"""`Series`: trajectories from a CSV, Parquet or NPZ file. Networks learn the flow that makes them."""

from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from resolvent_lab.training.batches import Samples, samples
from resolvent_lab.training.columns import data_file, expect, numbers, read_arrays, read_table
from resolvent_lab.training.data import Data, standardization
from resolvent_lab.training.facts import Facts


class Series(Data):
    """Time series of states, all of one length. A network predicts each from its first state.

    In a table each row is one series at one time; rows may be in any order. An NPZ file has arrays `times`, (times,) or
    (n, times), and `values`, (n, times, d). Times may differ from series to series. They increase.

    Arguments:
        file: ends in .csv, .tsv, .parquet or .npz.
        series: name of the column that tells the series apart; None for a table with a single one, which is then cut
            into pieces of `length` rows.
        time: name of the column of times.
        values: names of the columns of the state; None takes all others.
        length: the number of rows of each piece if there is no column `series`.
        standardize: whether states are standardized.
        batch_size: series per batch.
        validation, test: the fractions of the series that are held out.
        split_seed: of the split.
    """

    def __init__(
        self,
        file: Path,
        series: str | None = "series",
        time: str = "time",
        values: list[str] | None = None,
        length: int = 20,
        standardize: bool = True,
        batch_size: int = 32,
        validation: float = 0.1,
        test: float = 0.2,
        split_seed: int = 0,
    ) -> None:
        super().__init__(batch_size, validation, test, split_seed)
        if length < 2:
            raise ValueError(f"length is a number of rows and must be 2 or more, got {length}.")
        self.file, self.series, self.time, self.values = data_file(file), series, time, values
        self.length, self.standardize = length, standardize

    def read(self) -> Samples:
        return self._read(self.file, None)[0]

    def _read(self, file: Path, names: list[str] | None) -> tuple[Samples, list[Any], list[str]]:
        """Samples, the name of each series, and the names of the components."""
        found = self._from_arrays(file) if file.suffix == ".npz" else self._from_table(file, names)
        times, values, series, components = found
        if times.shape[1] < 2:
            raise ValueError(f"the series in {file} have {times.shape[1]} times, and need two or more.")
        if not bool((times.diff(dim=1) > 0).all()):
            worst = int((times.diff(dim=1) <= 0).any(1).nonzero()[0])
            raise ValueError(f"the times of series {series[worst]!r} in {file} must increase, without repetition.")
        return samples(values[:, 0], values, times), series, components

    def _from_arrays(self, file: Path) -> tuple[Tensor, Tensor, list[Any], list[str]]:
        arrays = read_arrays(file)
        expect(["times", "values"], arrays, file, "array")
        for name in ("times", "values"):
            if arrays[name].dtype.kind not in "biuf":
                raise ValueError(f"array {name!r} of {file} must hold numbers, got {arrays[name].dtype}.")
        times, values = (torch.from_numpy(arrays[name]).to(torch.get_default_dtype()) for name in ("times", "values"))
        if values.dim() != 3 or tuple(times.shape) not in (tuple(values.shape[1:2]), tuple(values.shape[:2])):
            raise ValueError(
                f"{file} must have values (n, times, d) and times (times,) or (n, times), got "
                f"{tuple(values.shape)} and {tuple(times.shape)}."
            )
        n = len(values)
        return times.expand(n, -1).clone(), values, list(range(n)), [f"y{i}" for i in range(values.shape[2])]

    def _from_table(self, file: Path, names: list[str] | None) -> tuple[Tensor, Tensor, list[Any], list[str]]:
        table = read_table(file)
        expect([self.time] if self.series is None else [self.series, self.time], table.columns, file)
        keys = {self.series, self.time}
        components = names or self.values or [name for name in table.columns if name not in keys]
        if not components:
            raise ValueError(f"{file} has no columns of states beside {self.time!r} and {self.series!r}.")
        table = table.sort_values(self.time, kind="stable")
        if self.series is None:
            usable = len(table) // self.length * self.length
            if not usable:
                raise ValueError(f"{file} has {len(table)} rows, fewer than a piece of length {self.length}.")
            groups = [(k, table.iloc[k : k + self.length]) for k in range(0, usable, self.length)]
        else:
            groups = list(table.groupby(self.series, sort=True))
        lengths = sorted({len(group) for _, group in groups})
        if len(lengths) > 1:
            raise ValueError(f"the series in {file} must have one length, got {lengths[0]} to {lengths[-1]} rows.")
        times = torch.stack([numbers(group, [self.time], file)[:, 0] for _, group in groups])
        values = torch.stack([numbers(group, components, file) for _, group in groups])
        return times, values, [name for name, _ in groups], components

    @cached_property
    def facts(self) -> Facts:
        train = self.part("train")
        states = train.targets.flatten(0, 1)
        mean, scale = standardization(states) if self.standardize else ((), ())
        if self.file.suffix == ".npz":
            components = [f"y{i}" for i in range(states.shape[1])]
        else:
            keys = {self.series, self.time}
            components = self.values or [name for name in read_table(self.file).columns if name not in keys]
        return Facts(
            "series",
            (states.shape[1],),
            inputs=tuple(components),
            targets=tuple(components),
            samples=train.size,
            mean=mean,
            scale=scale,
        )

    def read_inputs(self, file: Path, facts: Facts, targets: bool) -> tuple[Samples, list[Any]]:
        found, series, _ = self._read(file, list(facts.inputs))
        if tuple(found.inputs.shape[1:]) != facts.shape:
            raise ValueError(
                f"the states in {file} have {found.inputs.shape[1]} components, the network {facts.shape[0]}."
            )
        if not bool(found.targets.isfinite().all()):
            raise ValueError(f"the values in {file} hold nan or inf.")
        return found, series
