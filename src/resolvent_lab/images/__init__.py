"""Labelled images: sources, splits, and a data module for Lightning."""

from resolvent_lab.images.module import ImageModule as ImageModule
from resolvent_lab.images.sources import load as load
from resolvent_lab.images.split import Images as Images
from resolvent_lab.images.split import Split as Split
