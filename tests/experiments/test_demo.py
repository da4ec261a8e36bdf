"""The demonstration, in seconds."""

from pathlib import Path

import pytest
import torch

from resolvent.experiments import demo


def test_the_exact_solution_solves_the_equation() -> None:
    t, z0 = torch.linspace(0.0, 2.0, 50), torch.tensor([-0.3])
    step = 1e-5
    slope = (demo.exact(t + step, z0) - demo.exact(t - step, z0)) / (2 * step)
    assert (slope + 20 * (demo.exact(t, z0) - t.cos())).abs().max() < 1e-6
    assert (demo.exact(torch.zeros(1), z0) - z0).abs() < 1e-14


def test_it_writes_a_report_with_a_row_for_each_network(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.set_default_dtype(torch.float32)
    demo.demo(tmp_path, steps=2)
    page = (tmp_path / "report.html").read_text()
    assert page.count("<tr>") == 1 + len(demo.THETAS)
    assert "data:image/png;base64," in page
    assert "held-out error" in capsys.readouterr().out


@pytest.mark.parametrize(("theta", "low", "high"), [(0.0, -1.5, -0.5), (0.5, -0.112, 0.143), (1.0, 0.285, 0.4)])
def test_a_layer_multiplies_differences_by_what_the_report_says(theta: float, low: float, high: float) -> None:
    block = demo.network(theta)
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.mul_(5.0)  # well into the normalisation
        block.eval()  # which measures it anew
    z = torch.linspace(-0.5, 1.5, 40)[:, None]
    differences = block.trajectory(z).states[:2].diff(dim=1)
    factors = differences[1] / differences[0]
    assert low - 1e-3 < factors.min() < factors.max() < high + 1e-3
