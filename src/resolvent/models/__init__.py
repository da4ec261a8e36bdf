"""Networks made of theta blocks."""

from resolvent.models.implicit_resnet import ForwardResult, ImplicitResNet, implicit_resnet18

__all__ = ["ForwardResult", "ImplicitResNet", "implicit_resnet18"]
