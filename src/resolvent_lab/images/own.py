"""Your own images: a folder with a subfolder of pictures for each class, or an NPZ file."""

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from resolvent_lab.images.split import Images, Split, stratified

_PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")


def read_folder(folder: Path, train: int | None) -> Split:
    """Reads folder/CLASS/*.png or similar. All pictures have one size. Classes are numbered in the order of names."""
    classes = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    found = [[path for path in sorted(c.iterdir()) if path.suffix.lower() in _PICTURES] for c in classes]
    if len(classes) < 2 or not all(found):
        raise ValueError(
            f"{folder} must have a subfolder of pictures for each class, and at least two classes, got "
            f"{ {c.name: len(paths) for c, paths in zip(classes, found, strict=True)} }. MNIST consists of four files."
        )
    pictures = [_picture(path) for paths in found for path in paths]
    if len({tuple(picture.shape) for picture in pictures}) > 1:
        shapes = sorted({tuple(picture.shape) for picture in pictures})
        raise ValueError(f"the pictures in {folder} must have one size and be all in colour or all grey, got {shapes}.")
    labels = torch.tensor([label for label, paths in enumerate(found) for _ in paths])
    return stratified(Images(torch.stack(pictures), labels), train)


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
    pixels = images[:, None] if images.dim() == 3 else images.permute(0, 3, 1, 2)
    classes, numbered = labels.unique(return_inverse=True)
    if len(classes) < 2:
        raise ValueError(f"{path} must have two classes or more, got {classes.tolist()}.")
    return stratified(Images(_unit(pixels, path), numbered), train)


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
    with Image.open(path) as picture:
        grey = picture.mode in ("1", "L", "I;16", "I", "F")
        pixels = torch.from_numpy(np.array(picture.convert("L" if grey else "RGB")))
    return (pixels[None] if grey else pixels.permute(2, 0, 1)).float() / 255
