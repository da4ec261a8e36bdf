"""The documentation and the report as a reader sees them: in headless Chromium, on a desktop and on a phone.

Skipped without playwright and Debian's chromium, and the site without `make docs`.
"""

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SITE = Path(__file__).parents[2] / "build" / "docs"
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium"),
]
site = pytest.mark.skipif(not (SITE / "index.html").exists(), reason="make docs was not run")

# Formulas that were not rendered, and those that KaTeX could not read.
UNRENDERED = """() => [...document.querySelectorAll('.math')].filter(e => !e.querySelector('.katex')).length
    + document.querySelectorAll('.katex-error').length"""
TOO_WIDE = "() => document.documentElement.scrollWidth - window.innerWidth"
# Wide content must scroll in itself: what hangs out of the page, without such a parent, is clipped.
CLIPPED = """() => [...document.querySelectorAll('img, table, pre')].filter(e => {
    const box = e.getBoundingClientRect();
    if (box.width === 0 || box.right <= window.innerWidth + 1) return false;
    for (let parent = e; parent; parent = parent.parentElement)
        if (['auto', 'scroll'].includes(getComputedStyle(parent).overflowX)) return false;
    return true;
}).length"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def open_page(browser: Any) -> Iterator[Any]:
    """Opens pages without a network. What the console reports, and what is asked of the network, is an error."""
    contexts, errors = [], []

    def opened(viewport: dict[str, int], scheme: str = "light") -> Any:
        context = browser.new_context(viewport=viewport, color_scheme=scheme, offline=True)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda request: errors.append(request.url) if request.url.startswith("http") else None)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not errors


def looks_right(page: Any) -> None:
    assert page.evaluate(TOO_WIDE) <= 1, f"{page.url} is wider than the window"
    assert page.evaluate(CLIPPED) == 0, f"{page.url} has content that is clipped"
    assert page.evaluate(UNRENDERED) == 0, f"{page.url} has formulas that were not rendered"


def brightness(page: Any) -> float:
    """Of the background, between 0 and 255."""
    color = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    return sum(float(part) for part in color.split("(")[1].rstrip(")").split(",")[:3]) / 3


@site
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_of_the_site(open_page: Any, scheme: str) -> None:
    page = open_page(DESKTOP, scheme)
    pages = [path for path in sorted(SITE.rglob("*.html")) if path.name not in ("search.html", "genindex.html")]
    assert len(pages) > 30
    for path in pages:
        page.goto(path.as_uri())
        for viewport in (PHONE, DESKTOP):
            page.set_viewport_size(viewport)
            looks_right(page)
    assert (brightness(page) > 128) == (scheme == "light")


@site
def test_every_page_is_one_click_from_every_other(open_page: Any) -> None:
    page = open_page(DESKTOP)
    page.goto((SITE / "index.html").as_uri())
    count = page.locator(".sidebar-tree a.reference").count()
    assert count > 30
    places = set()
    for number in range(count):
        link = page.locator(".sidebar-tree a.reference").nth(number)
        with page.expect_navigation():
            link.evaluate("element => element.click()")  # some are folded
        assert page.locator("article h1").count() >= 1
        places.add(page.url)
    assert len(places) == count


@site
def test_the_menu_of_a_phone_opens(open_page: Any) -> None:
    page = open_page(PHONE)
    page.goto((SITE / "index.html").as_uri())
    page.locator("label.nav-overlay-icon:visible").first.click()
    page.locator(".sidebar-tree a", has_text="Getting started").first.click()
    assert page.locator("article h1").first.inner_text().startswith("Getting started")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of two short runs."""
    pytest.importorskip("matplotlib").use("Agg")
    from resolvent_lab.experiments.report import write_report
    from resolvent_lab.experiments.results import collect
    from resolvent_lab.experiments.stiff import model
    from resolvent_lab.experiments.sweep import sweep

    out = tmp_path_factory.mktemp("report")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "FINE_STEPS", 100)
        configs = {config.theta: dataclasses.replace(config, epochs=1) for config in model.configs(True, [0.0, 0.5], 1)}
        tasks = [("stiff", config) for config in configs.values()]
        sweep(tasks, out, jobs=1)
        return write_report(out, collect(out))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_the_report(open_page: Any, report: Path, viewport: dict[str, int], scheme: str) -> None:
    page = open_page(viewport, scheme)
    page.goto(report.as_uri())
    looks_right(page)
    assert (brightness(page) > 128) == (scheme == "light")
    # The main figure is on the first screen, and a table opens with a click.
    assert page.locator("main img").first.bounding_box()["y"] < viewport["height"]
    page.locator("nav a", has_text="stiff").click()
    folded = page.locator("details:not([open])").first
    folded.locator("summary").click()
    assert page.locator("details[open]").count() >= 2
    looks_right(page)
