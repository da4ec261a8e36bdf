"""The record that describes an experiment. Each experiment makes one in its own folder."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resolvent_lab.experiments.claim import Claim
from resolvent_lab.experiments.network import Batches, RunConfig, Trainable
from resolvent_lab.images import ImageModule

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from resolvent_lab.experiments.run import Run

Data = Batches | ImageModule
Rows = list[list[str]]


def _always(config: RunConfig) -> bool:
    return True


def _nothing(_: object) -> str:
    return ""


@dataclass(frozen=True)
class Experiment:
    """All that training and report need to know about an experiment.

    Attributes:
        name: on the command line, and the folder of its runs.
        title, description: for the report.
        config: its class of configurations.
        configs: (quick, thetas, seeds) -> the configurations of its sweep.
        data: configuration -> data. Random numbers come from torch's global generator.
        network: configuration -> network. Random numbers come from torch's global generator.
        claims: what the paper says about it.
        tables: runs -> tables by title, as rows of text with the header first.
        figures: runs -> figures by name. Import matplotlib inside this function: training does not need it.
        captions: of the figures, by name.
        main_figure: name of the figure that the report may open with; empty if there is none.
        headline: runs -> what the main figure shows, in a sentence; empty if the necessary runs are not there.
        shown_in: claim -> the figure or table of the paper that shows it; empty if none does.
        figures_show_all_seeds: whether figures are drawn from all runs or from those with the first seed.
        claims_apply: whether the claims are about a run with this configuration.
        duration: of a run, relative to other experiments. The longest ones start first.
        in_demo: whether `reproduce all --quick` runs it. It should take less than 20 seconds.
        extras: names of further keyword arguments of `configs`.
        attack: (folder of results, size, number of images) -> None. Attacks the trained networks, if that makes sense.
    """

    name: str
    title: str
    description: str
    config: type[RunConfig]
    configs: Callable[..., Sequence[RunConfig]]
    data: Callable[[Any], Data]
    network: Callable[[Any], Trainable]
    claims: Sequence[Claim]
    tables: "Callable[[Sequence[Run]], dict[str, Rows]]"
    figures: "Callable[[Sequence[Run]], dict[str, Figure]]"
    captions: Mapping[str, str] = field(default_factory=dict)
    main_figure: str = ""
    headline: "Callable[[Sequence[Run]], str]" = _nothing
    shown_in: Callable[[Claim], str] = _nothing
    figures_show_all_seeds: bool = False
    claims_apply: Callable[[Any], bool] = _always
    duration: int = 1
    in_demo: bool = True
    extras: tuple[str, ...] = ()
    attack: Callable[[Path, str, int], None] | None = None
