"""What can be checked of a figure without eyes: that nothing is cut off, and no words lie on others."""

from itertools import combinations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox


def words(figure: Figure) -> dict[str, Bbox]:
    """The extents of all words of a figure that are drawn, in pixels."""
    figure.canvas.draw()
    found: list[Text] = []
    for legend in figure.legends:
        found += [legend.get_title(), *legend.get_texts()]
    for ax in figure.axes:
        found += [ax.title, ax.xaxis.label, ax.yaxis.label, *ax.texts, *_tick_labels(ax)]
        legend = ax.get_legend()
        found += [] if legend is None else [legend.get_title(), *legend.get_texts()]
    extents = [(text, text.get_window_extent()) for text in found if text.get_visible() and text.get_text().strip()]
    return {f"{text.get_text()} at {box.x0:.0f}, {box.y0:.0f}": box for text, box in extents}


def _tick_labels(ax: Axes) -> list[Text]:
    """Those within the limits: ticks keep labels beyond them, which are not drawn."""
    labels = []
    for axis, limits in ((ax.xaxis, ax.get_xlim()), (ax.yaxis, ax.get_ylim())):
        ticks = [*axis.get_major_ticks(), *axis.get_minor_ticks()]
        labels += [tick.label1 for tick in ticks if limits[0] <= tick.get_loc() <= limits[1]]
    return labels


def check(figure: Figure) -> None:
    """Fails where words are cut off by the edge of the figure, or overlap."""
    extents = words(figure)
    assert extents
    for name, box in extents.items():
        assert figure.bbox.x0 - 0.5 <= box.x0, f"{name} is cut off"
        assert box.x1 <= figure.bbox.x1 + 0.5, f"{name} is cut off"
        assert figure.bbox.y0 - 0.5 <= box.y0, f"{name} is cut off"
        assert box.y1 <= figure.bbox.y1 + 0.5, f"{name} is cut off"
    for (first, a), (second, b) in combinations(extents.items(), 2):
        shared = Bbox.intersection(a, b)
        assert shared is None or shared.width * shared.height < 1.0, f"{first} overlaps {second}"


def check_print_size(figure: Figure, smallest: float = 6.0) -> None:
    """Fails where the figure is wider than a page, or its type smaller than can be read."""
    assert figure.get_size_inches()[0] <= 7.01
    for text in figure.findobj(Text):
        if text.get_text().strip():
            assert text.get_fontsize() >= smallest, text.get_text()
