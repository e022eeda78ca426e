"""The report in a real browser: it draws, sorts, fits, prints and asks nobody for anything."""

import re

import pytest

from cofair.report import page as report
from cofair.report.reported_runs import read_methods
from tests.report.browser import NONE, chromium
from tests.report.folders import NASTY, write_folder
from tests.report.made import made_method, made_run

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = [pytest.mark.browser, pytest.mark.skipif(chromium() is None, reason=NONE)]

NAMES = [NASTY, "b & c", "a client with a name that goes on and on and on", "d"]
FULL = "() => [...document.querySelectorAll('[data-plot]')].filter((one) => !one.closest('[hidden]'))"
UNDRAWN = f"({FULL})().filter((one) => !one.querySelector('svg.main-svg') || !one.clientWidth).length"
MARKS = f"""({FULL})().map((one) => one.querySelectorAll(
    '.scatterlayer path, .barlayer path, .heatmaplayer image').length)"""


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def opened(browser):
    """Open pages and note every error and request; at the end there must have been none."""
    contexts, wrong = [], []

    def own(url):
        return url.startswith(("file:", "data:", "blob:")) and not url.endswith((".js", ".css"))

    def open_page(path):
        context = browser.new_context(viewport={"width": 1440, "height": 900}, color_scheme="light")
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(180_000)  # a busy machine draws slowly, and that is no fault of the page
        page.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("dialog", lambda dialog: (wrong.append("a dialog opened"), dialog.dismiss()))
        page.on("request", lambda request: wrong.append(request.url) if not own(request.url) else None)
        page.goto(path.as_uri())
        drawn(page)
        return page

    yield open_page, wrong
    for context in contexts:
        context.close()


@pytest.fixture(scope="module")
def shared(opened, compared):
    return opened[0](compared)


@pytest.fixture
def page(shared, opened):
    """The comparison as it is first seen: opening it takes longer than most tests."""
    shared.set_viewport_size({"width": 1440, "height": 900})
    shared.emulate_media(media="screen", color_scheme="light")
    yield shared
    assert not opened[1]


def until(page, condition):
    """Wait for a condition, asked from outside: the page's policy forbids evaluating texts inside it."""
    for _ in range(200):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"never came true: {condition}")


def drawn(page):
    until(page, f"{UNDRAWN} === 0")


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    rounds = tuple(range(5, 31, 5)) + tuple(range(31, 41))
    entries = [
        made_method("standalone", NAMES, rounds=(1,), reputation=False),
        made_method("cgsv", NAMES, rounds=rounds),
        made_method("fedsac", NAMES, rounds=rounds, neurons=40, spread=0.25),
        made_method("fedavg", NAMES, rounds=rounds, spread=0, reputation=False),
    ]
    return report.write(entries, tmp_path_factory.mktemp("compared") / "report.html")


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    folder = tmp_path_factory.mktemp("odd")
    many = made_method("cgsv", [f"{NASTY} {k}" for k in range(1000)], neurons=512)
    report.write([many], folder / "many.html")
    report.write([made_method("fedsac", ["only"], seeds=1)], folder / "one.html")
    stopped = write_folder(folder / "stopped", made_run(NAMES, rounds=range(1, 21)), records=1, cut=True)
    report.write(read_methods([stopped]), folder / "stopped.html")
    gaps = write_folder(folder / "gaps", made_run(NAMES, rounds=(1, 2, 7, 8)))
    report.write(read_methods([gaps]), folder / "gaps.html")
    report.write_statement(read_methods([gaps])[0], NASTY, folder / "client.html")
    return folder


def test_plots_are_drawn_only_when_they_are_seen(page):
    assert page.locator("[hidden] svg.main-svg").count() == 0


def test_every_plot_of_every_method_draws(page):
    choose = page.get_by_label("Method", exact=True)
    labels = choose.locator("option").all_inner_texts()
    assert sorted(labels) == ["cgsv", "fedavg", "fedsac", "standalone"]
    for label in labels:
        choose.select_option(label=label)
        drawn(page)
        assert page.locator(".method:visible h3").inner_text() == label
        assert all(count > 0 for count in page.evaluate(MARKS)), label


def test_a_method_is_chosen_from_the_table(page):
    page.get_by_role("link", name="fedavg").click()
    drawn(page)
    assert page.locator(".method:visible h3").inner_text() == "fedavg"


def test_the_table_sorts_by_mouse_and_keyboard(page):
    rows = page.locator("table.comparison tbody th")
    fairness = page.locator("table.comparison").get_by_role("columnheader", name="fairness γ")
    assert fairness.get_attribute("aria-sort") == "descending"
    assert rows.all_inner_texts()[-1] == "fedavg"  # undefined
    fairness.get_by_role("button").click()
    assert fairness.get_attribute("aria-sort") == "ascending"
    assert rows.all_inner_texts()[-1] == "fedavg"
    method = page.locator("table.comparison").get_by_role("columnheader", name="method")
    method.get_by_role("button").focus()
    page.keyboard.press("Enter")
    assert method.get_attribute("aria-sort") == "ascending"
    assert fairness.get_attribute("aria-sort") == "none"
    assert rows.all_inner_texts() == ["cgsv", "fedavg", "fedsac", "standalone"]
    page.keyboard.press("Space")
    assert rows.all_inner_texts() == ["standalone", "fedsac", "fedavg", "cgsv"]


def fits(page, width):
    page.set_viewport_size({"width": width, "height": 900})
    until(page, f"({FULL})().every((one) => one.querySelector('svg').clientWidth <= one.clientWidth)")
    drawn(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(f"({FULL})().filter((one) => one.getBoundingClientRect().right > {width}).length") == 0
    assert all(count > 0 for count in page.evaluate(MARKS))


def test_nothing_is_wider_than_the_page(page):
    fits(page, 1440)
    fits(page, 390)


@pytest.mark.parametrize("kind", ["many", "one", "stopped", "gaps", "client"])
def test_odd_runs_draw_and_fit_too(opened, odd, kind):
    page = opened[0](odd / f"{kind}.html")
    fits(page, 1440)
    fits(page, 390)
    if kind == "many":
        assert page.locator("tbody[data-rows] tr").count() == 50
        page.get_by_label("Find one of 1,000 clients").fill("script> 77")
        shown = page.locator("tbody[data-rows] th").all_inner_texts()
        assert sorted(shown, key=len)[0] == f"{NASTY} 77"
        assert len(shown) == 11
    assert not opened[1]


def luminance(colour):
    return sum(int(part) for part in re.findall(r"\d+", colour)[:3]) / 3


def test_dark_and_light_follow_the_reader_plots_too(page):
    page.emulate_media(color_scheme="dark")
    page.wait_for_timeout(300)

    def colours():
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        text = page.evaluate("getComputedStyle(document.querySelector('.xtick text')).fill")
        return luminance(ground), luminance(text)

    ground, text = colours()
    assert ground < 60
    assert text > 140
    page.emulate_media(color_scheme="light")
    page.wait_for_timeout(300)
    ground, text = colours()
    assert ground > 240
    assert text < 120


def test_a_client_called_script_stays_a_name(page):
    page.get_by_label("Method", exact=True).select_option(label="cgsv")
    drawn(page)
    assert page.get_by_role("heading", name=f"Client {NASTY}").count() > 0
    assert any(text.startswith("<script>") for text in page.locator(".legendtext").all_text_contents())


def test_who_does_not_see_the_plots_is_told(page):
    assert page.evaluate("document.documentElement.lang") == "en"
    visible = page.locator("[data-plot][role=img]:visible")
    assert visible.count() == page.evaluate(f"({FULL})().length")
    assert all(len(one.get_attribute("aria-label")) > 40 for one in visible.all())
    assert page.get_by_role("heading", level=1).count() == 1


def test_printing_gives_clean_pages(page, tmp_path):
    page.emulate_media(color_scheme="dark")
    page.pdf(path=tmp_path / "report.pdf", format="A4")
    printed = (tmp_path / "report.pdf").read_bytes()
    assert 4 <= len(re.findall(rb"/Type\s*/Page\b", printed)) <= 12
    page.emulate_media(media="print", color_scheme="dark")
    assert luminance(page.evaluate("getComputedStyle(document.body).backgroundColor")) == 255
    assert not page.locator(".choose").first.is_visible()
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert luminance(page.evaluate("getComputedStyle(document.querySelector('.xtick text')).fill")) < 120
    assert page.evaluate(f"Math.max(...({FULL})().map((one) => one.querySelector('svg').clientWidth))") <= 680
    page.evaluate("dispatchEvent(new Event('afterprint'))")
