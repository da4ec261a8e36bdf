"""Your own images: a folder with a subfolder of pictures for each class, or an NPZ file."""

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from resolvent_lab.images.split import Images, Split, stratified

_PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")


def read_folder(folder: Path, train: int | None) -> Split:
    """Reads folder/CLASS/*.png or similar. All pictures have one size. Classes are numbered in the order of names."""
    found = {path.name: pictures_in(path) for path in subfolders(folder)}
    if len(found) < 2 or not all(found.values()):
        raise ValueError(
            f"{folder} must have a subfolder of pictures for each class, and at least two classes, got "
            f"{ {name: len(paths) for name, paths in found.items()} }. MNIST consists of four files."
        )
    pictures = read_pictures([path for paths in found.values() for path in paths])
    labels = torch.tensor([label for label, paths in enumerate(found.values()) for _ in paths])
    return stratified(Images(pictures, labels), train)


def subfolders(folder: Path) -> list[Path]:
    """The subfolders for the classes, in the order of their names."""
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def pictures_in(folder: Path) -> list[Path]:
    """The pictures directly in a folder, in the order of their names."""
    return [path for path in sorted(folder.iterdir()) if path.suffix.lower() in _PICTURES]


def read_pictures(paths: Sequence[Path]) -> Tensor:
    """(n, channels, height, width), in [0, 1]."""
    pictures = [_picture(path) for path in paths]
    shapes = sorted({tuple(picture.shape) for picture in pictures})
    if len(shapes) > 1:
        folder = paths[0].parent
        raise ValueError(f"the pictures in {folder} must have one size and be all in colour or all grey, got {shapes}.")
    return torch.stack(pictures)


def read_npz(path: Path, train: int | None) -> Split:
    """Reads arrays `images`, (n, height, width) or (n, height, width, channels), and `labels`, (n,).

    Pixels are bytes, or numbers in [0, 1].
    """
    arrays = _arrays(path)
    if {"images", "labels"} - set(arrays):
        raise ValueError(f"{path} must have arrays images and labels, got {sorted(arrays)}.")
    images, labels = torch.from_numpy(arrays["images"]), torch.from_numpy(arrays["labels"])
    if images.dim() not in (3, 4) or labels.shape != images.shape[:1] or labels.is_floating_point():
        raise ValueError(
            f"{path} must have images (n, height, width) or (n, height, width, channels) and whole numbers (n,) for "
            f"labels, got images {tuple(images.shape)} and {labels.dtype} labels {tuple(labels.shape)}."
        )
    classes, numbered = labels.unique(return_inverse=True)
    if len(classes) < 2:
        raise ValueError(f"{path} must have two classes or more, got {classes.tolist()}.")
    return stratified(Images(pixels_of(images, path), numbered), train)


def pixels_of(images: Tensor, path: Path) -> Tensor:
    """(n, channels, height, width) in [0, 1], from (n, height, width) or (n, height, width, channels)."""
    return _unit(images[:, None] if images.dim() == 3 else images.permute(0, 3, 1, 2), path)


def _arrays(path: Path) -> dict[str, Any]:
    try:
        with np.load(path) as file:
            return dict(file)
    except (OSError, TypeError, ValueError, EOFError, zipfile.BadZipFile) as error:
        # numpy raises TypeError from `with` for a single array, and ValueError for a file that it cannot read.
        raise ValueError(
            f"{path} is not an NPZ file with arrays images and labels ({error}): --data-dir takes such a file, a "
            "folder with a subfolder of pictures for each class, or a folder with the files of MNIST."
        ) from None


def _unit(pixels: Tensor, path: Path) -> Tensor:
    if pixels.dtype == torch.uint8:
        return pixels.float() / 255
    pixels = pixels.float()
    if not bool(((pixels >= 0) & (pixels <= 1)).all()):
        low, high = float(pixels.min()), float(pixels.max())
        raise ValueError(f"images in {path} must be bytes or lie in [0, 1], got {low:.4g} to {high:.4g}.")
    return pixels


def _picture(path: Path) -> Tensor:
    try:
        from PIL import Image
    except ImportError:
        raise ValueError('pictures need pillow: pip install "resolvent[images]"') from None
    try:
        with Image.open(path) as picture:
            grey = picture.mode in ("1", "L", "I;16", "I", "F")
            pixels = torch.from_numpy(np.array(picture.convert("L" if grey else "RGB")))
    except OSError as error:  # pillow's own errors derive from it
        raise ValueError(f"cannot read the picture {path}: {error}") from None
    return (pixels[None] if grey else pixels.permute(2, 0, 1)).float() / 255
