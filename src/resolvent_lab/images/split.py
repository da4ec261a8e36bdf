"""Labelled images, and their split into training, validation and test images."""

from typing import NamedTuple

import torch
from torch import Tensor


class Images(NamedTuple):
    """Labelled images.

    Attributes:
        images: (n, channels, height, width), float32 in [0, 1].
        labels: (n,), int64, from 0 on.
    """

    images: Tensor
    labels: Tensor

    def take(self, indices: Tensor | slice) -> "Images":
        """The images with these indices, in that order."""
        return Images(self.images[indices], self.labels[indices])

    def to(self, device: torch.device | str) -> "Images":
        return Images(self.images.to(device), self.labels.to(device))


class Split(NamedTuple):
    """The parts of a data set.

    Attributes:
        train: for training.
        validation: for choosing a recipe.
        test: for measuring the chosen recipe, once.
    """

    train: Images
    validation: Images
    test: Images

    @property
    def num_classes(self) -> int:
        return 1 + max(int(part.labels.max()) for part in self)

    def part(self, name: str) -> Images:
        """A part by its name."""
        if name not in self._fields:
            raise ValueError(f"the parts of a data set are {', '.join(self._fields)}, got {name!r}.")
        found: Images = getattr(self, name)
        return found


def stratified(data: Images, train: int | None) -> Split:
    """Splits images by class, always in the same way, with equally many training images of each class.

    A quarter of the remaining images, but at most as many as there are training images, is for validation.

    Arguments:
        data: in any order; classes may differ in size.
        train: number of training images, a multiple of the number of classes. None takes from each class half the size
            of the smallest class, but at most 100.
    """
    classes = data.labels.unique().tolist()
    smallest = min(int((data.labels == c).sum()) for c in classes)
    train = len(classes) * min(100, smallest // 2) if train is None else train
    each, odd = divmod(train, len(classes))
    if odd or each < 1 or smallest < each + 2:
        raise ValueError(
            f"cannot take {train} training images with equally many of each of {len(classes)} classes, and hold some "
            f"out: the smallest class has {smallest} images. Take a smaller multiple of {len(classes)}."
        )
    random = torch.Generator().manual_seed(0)
    order = torch.randperm(len(data.labels), generator=random)
    parts: tuple[list[Tensor], list[Tensor], list[Tensor]] = ([], [], [])
    for c in classes:
        members = order[data.labels[order] == c]
        chosen = min(each, max(1, (len(members) - each) // 4))
        for part, indices in zip(parts, members.split([each, chosen, len(members) - each - chosen]), strict=True):
            part.append(indices)
    # Shuffled again, so that the first images of a part are a random choice.
    return Split(*(data.take(torch.cat(part)[torch.randperm(sum(map(len, part)), generator=random)]) for part in parts))
