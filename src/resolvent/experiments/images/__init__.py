"""Labelled images: where they come from, how they are split, and how they reach a network."""

from resolvent.experiments.images.module import ImageModule as ImageModule
from resolvent.experiments.images.sources import load as load
from resolvent.experiments.images.split import Images as Images
from resolvent.experiments.images.split import Split as Split
