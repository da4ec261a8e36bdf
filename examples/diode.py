"""A layer of your own from `rs.resolve`: find the parameters of a diode from measured voltages.

    python examples/diode.py

A source U, a resistor R and a diode in series: the voltage v at the diode solves v = U - R I(v) with the current
I(v) = I0 (exp(v / V0) - 1). No iteration is differentiated, and the exponential makes none fail.
"""

import torch
from torch import Tensor

import resolvent as rs


def voltage(source: Tensor, log_current: Tensor, log_scale: Tensor, resistance: float = 100.0) -> Tensor:
    """The voltage at the diode, (batch, 1)."""

    def current(v: Tensor) -> Tensor:
        return -torch.exp(log_current) * torch.expm1(v / torch.exp(log_scale))

    # It starts where the diode lets nearly nothing through.
    start = source.clamp(max=0.6)
    return rs.resolve(current, source, tau=resistance, w0=start).value


def main() -> None:
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    true = torch.tensor([1e-9, 0.05]).log()
    source = torch.linspace(0.1, 5.0, 30)[:, None]
    measured = voltage(source, true[0], true[1]) + 1e-3 * torch.randn(30, 1)

    found = torch.tensor([1e-8, 0.07]).log().requires_grad_()
    optimizer = torch.optim.LBFGS([found], max_iter=40, line_search_fn="strong_wolfe")

    def closure() -> float:
        optimizer.zero_grad()
        loss = (voltage(source, found[0], found[1]) - measured).square().mean() * 1e4
        loss.backward()
        return loss.item()

    optimizer.step(closure)
    current, scale = found.detach().exp().tolist()
    print(f"I0 = {current:.2e} A (true 1.00e-09), V0 = {scale:.4f} V (true 0.0500)")


if __name__ == "__main__":
    main()
