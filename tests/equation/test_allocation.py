"""A solve of a large state takes the memory of its earlier steps, not new pages from the system."""

import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a matter of glibc's allocator")

_PROGRAM = """
import resource
import torch
import resolvent as rs

torch.manual_seed(0)
torch.set_num_threads(1)
net = torch.nn.Sequential(torch.nn.Conv2d(16, 16, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(16, 16, 3, padding=1))
block = rs.ThetaBlock(rs.Autonomous(net), num_steps=2, horizon=0.5)
x = torch.randn(64, 16, 14, 14)

def step():
    block(x).square().mean().backward()

for _ in range(3):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    step()
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // 10)
"""


def test_a_step_of_training_takes_almost_no_new_pages() -> None:
    run = subprocess.run([sys.executable, "-c", _PROGRAM], stdout=subprocess.PIPE, text=True, check=True)
    pages_of_a_state = 64 * 16 * 14 * 14 * 4 // 4096
    assert int(run.stdout) < 3 * pages_of_a_state  # A step allocates more than twenty such tensors.
