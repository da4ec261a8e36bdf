"""Whole networks made of theta blocks."""

from resolvent.models.implicit_resnet import ImplicitResNet, Passage, implicit_resnet18

__all__ = ["ImplicitResNet", "Passage", "implicit_resnet18"]
