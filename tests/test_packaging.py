"""Wheel and sdist: they build, and work in an environment with torch and what torch needs, and nothing else."""

import os
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

FOREIGN = ("numpy", "matplotlib", "lightning", "scipy")
ALONE = f"""
import importlib.util
import resolvent as rs

assert not any(importlib.util.find_spec(name) for name in {FOREIGN})
print(rs.__file__, rs.__version__, sep="\\n")
"""


def test_the_changelog_and_the_citation_know_the_version() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert changelog.startswith("# Changelog\n\n## Unreleased\n")
    (date,) = re.findall(rf"^## {re.escape(resolvent.__version__)} \((\d{{4}}-\d\d-\d\d)\)$", changelog, re.MULTILINE)
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"version: {resolvent.__version__}\ndate-released: {date}\n" in citation


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


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of packages of an empty environment in which torch and what it needs are installed, as links."""
    env = tmp_path_factory.mktemp("env")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(env)], check=True, timeout=120)
    (packages,) = (env / "lib").glob("python*/site-packages")
    for place, path in needed("torch", {}).items():
        (packages / place).symlink_to(path)
    return packages


def run(packages: Path, *arguments: str) -> str:
    """Runs the interpreter of an environment and returns what it prints."""
    python = packages.parents[2] / "bin" / "python"
    done = subprocess.run([str(python), *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def install(packages: Path, *arguments: str, **environment: str) -> None:
    """Installs into an environment without a package index: what is not there cannot be fetched."""
    pip = [sys.executable, "-m", "pip", "--python", str(packages.parents[2] / "bin" / "python")]
    command = [*pip, "install", "--no-index", "--no-compile", "--quiet", "--disable-pip-version-check", *arguments]
    env = os.environ | environment
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=env)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_wheel_installs_beside_torch_alone_and_runs_the_program_of_the_readme(built: Path, empty: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {"resolvent/py.typed", "resolvent_lab/py.typed"} <= set(names)
    assert all(name.startswith(("resolvent/", "resolvent_lab/", "resolvent-")) for name in names)
    install(empty, str(wheel))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    program = readme.split("```python\n")[1].split("```")[0]
    result, place, version = run(empty, "-I", "-c", program + ALONE).splitlines()
    assert float(result.removesuffix("% right")) > 95
    assert place.startswith(str(empty))
    assert version == resolvent.__version__


@pytest.mark.slow
def test_the_sdist_installs_beside_torch_alone(built: Path, empty: Path, tmp_path: Path) -> None:
    """Its build needs hatchling, which pip would fetch; here it is found, and only while the package is built."""
    (sdist,) = built.glob("*.tar.gz")
    for place, path in needed("hatchling", {}).items():
        (tmp_path / place).symlink_to(path)
    install(empty, "--force-reinstall", "--no-deps", "--no-build-isolation", str(sdist), PYTHONPATH=str(tmp_path))
    place, version = run(empty, "-I", "-c", ALONE).splitlines()
    assert place.startswith(str(empty))
    assert version == resolvent.__version__
