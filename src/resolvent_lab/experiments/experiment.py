"""What describes an experiment: one record, made in the folder of the experiment."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resolvent_lab.experiments.claim import Claim
from resolvent_lab.experiments.network import Batches, Config, Network
from resolvent_lab.images import ImageModule

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from resolvent_lab.experiments.run import Run

Data = Batches | ImageModule
Rows = list[list[str]]


@dataclass(frozen=True)
class Experiment:
    """All that training and report need to know of an experiment.

    Attributes:
        name: on the command line, and of its folder of runs.
        title, description: what was done, in words.
        config: its class of configurations.
        configs: (quick, thetas, seeds) to the configurations of its sweep.
        data: a configuration to its data, drawn from torch's generator.
        network: a configuration to the network, likewise.
        claims: of the paper.
        tables: its runs to tables by title, as rows of text with the header first.
        figures: its runs to figures by name. It is called where matplotlib is installed, and imports it late.
        captions: of the figures, by name.
        figures_show_all_seeds: whether figures are drawn from all runs, or from those with the first seed.
        duration: of a run, compared with other experiments: the longest ones begin first.
        extras: what `configs` takes besides, by keyword.
        attack: attacks the trained networks in a folder of results, (out, size, number of images); None where there
            is nothing to attack.
    """

    name: str
    title: str
    description: str
    config: type[Config]
    configs: Callable[..., Sequence[Config]]
    data: Callable[[Any], Data]
    network: Callable[[Any], Network]
    claims: Sequence[Claim]
    tables: "Callable[[Sequence[Run]], dict[str, Rows]]"
    figures: "Callable[[Sequence[Run]], dict[str, Figure]]"
    captions: Mapping[str, str] = field(default_factory=dict)
    figures_show_all_seeds: bool = False
    duration: int = 1
    extras: tuple[str, ...] = ()
    attack: Callable[[Path, str, int], None] | None = None
