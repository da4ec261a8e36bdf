"""Double precision, one thread and fixed seeds for every test."""

import os
from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, settings

from seeding import SHIFT, shifted

settings.register_profile(
    "resolvent",
    deadline=None,
    max_examples=30,
    derandomize=SHIFT == 0,  # With another seed, --hypothesis-seed decides.
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("resolvent")
torch.set_num_threads(1)
# Layers in lists of parameters are made when their file is read.
torch.manual_seed(shifted(0))


@pytest.fixture(autouse=True)
def _deterministic() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(shifted(0))
    yield
    torch.set_default_dtype(before)


@pytest.fixture
def fast_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is traced is the same for every backend, and this one takes a second where the default takes twenty."""
    monkeypatch.setattr("resolvent.blocks.strategies.compiling.BACKEND", "eager")


@pytest.fixture(scope="session", autouse=True)
def _own_compiler_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """torch finds compiled code again that was made for other instructions of the same processor, and computes wrong
    numbers with it."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(tmp_path_factory.mktemp("compiled"))


# For all processes of a run: those of xdist inherit the environment.
def pytest_configure() -> None:
    os.environ.setdefault("RESOLVENT_HONESTY_SEED", os.environ.get("RESOLVENT_TEST_SEED", "0"))


def pytest_report_header() -> str:
    return f"RESOLVENT_HONESTY_SEED={os.environ['RESOLVENT_HONESTY_SEED']}"
