"""Wheel and sdist: they build, and work in an environment with torch and what torch needs, and nothing else."""

import re
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

import resolvent

ROOT = Path(__file__).parents[1]

PROGRAM = """
import importlib.util, sys
import torch
import resolvent as rs

for name in ("numpy", "matplotlib", "lightning", "scipy"):
    assert importlib.util.find_spec(name) is None, name
block = rs.ThetaBlock(rs.fields.MLP(2, 8, 1), theta=0.5, num_steps=2)
block(torch.randn(3, 2)).sum().backward()
print(rs.odeint(lambda t, y: -y, torch.ones(1, 1), [0.0, 1.0]).states[-1].item(), rs.__file__)
"""


def test_the_changelog_and_the_citation_know_the_version() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert changelog.startswith("# Changelog\n\n## Unreleased\n") or f"\n## {resolvent.__version__}" in changelog
    assert f"version: {resolvent.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_the_version_is_one_of_pypi() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?(\.dev\d+)?", resolvent.__version__)


def needed(name: str, found: dict[str, Path]) -> dict[str, Path]:
    """The files and folders of a distribution and all that it requires, by name in site-packages."""
    try:
        package = distribution(name)
    except PackageNotFoundError:  # for another platform
        return found
    places = {Path(file).parts[0] for file in package.files or () if Path(file).parts[0] not in ("..", "__pycache__")}
    if not places <= found.keys():
        found |= {place: Path(str(package.locate_file(place))) for place in places}
        for requirement in package.requires or ():
            if "extra ==" not in requirement:
                needed(re.split(r"[\s;<>=!~\[(]", requirement)[0], found)
    return found


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("build")
    pytest.importorskip("hatchling")
    out = tmp_path_factory.mktemp("dist")
    # The wheel is made from the sdist: that is what a user of the sdist gets.
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return out


@pytest.mark.slow
def test_the_sdist_has_what_it_takes_to_test_it(built: Path) -> None:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    assert {"pyproject.toml", "Makefile", "README.md", "tests/conftest.py", "docs/conf.py"} <= names
    assert {"examples/two_moons.py", "docs/figures/overview.png"} <= names
    assert not any(name.startswith((".venv", "build/", "docs/_build")) for name in names)
    assert path.stat().st_size < 8e6


@pytest.mark.slow
def test_the_wheel_works_with_torch_alone(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "env")], check=True, timeout=120)
    (packages,) = (tmp_path / "env" / "lib").glob("python*/site-packages")
    for place, path in needed("torch", {}).items():
        (packages / place).symlink_to(path)
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(packages)
    assert {"resolvent/py.typed", "resolvent_lab/py.typed"} <= set(names)
    assert all(name.startswith(("resolvent/", "resolvent_lab/", "resolvent-")) for name in names)
    python = tmp_path / "env" / "bin" / "python"
    done = subprocess.run(
        [str(python), "-I", "-c", PROGRAM], capture_output=True, text=True, timeout=120, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
    value, place = done.stdout.split()
    assert float(value) == pytest.approx(0.3679, abs=1e-3)
    assert place.startswith(str(packages))
