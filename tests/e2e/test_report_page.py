"""The report of real runs in a real browser, opened from a file without network access."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser

from paceline.explain.cases.evidence import load_evidence
from paceline.explain.cases.step import measured_step
from paceline.explain.explanation import explain_campaign
from paceline.measurements.results import campaign_results, find_campaign
from paceline.measurements.store import Store
from paceline.report.html import render_page
from tests.e2e.conftest import Opened, Written
from tests.made import Made, write

PLOTS = ("scaling-plot", "efficiency-plot", "phases-plot", "timeline-plot", "gap-plot", "tornado-plot", "residual-plot")


def test_numbers_on_the_page_equal_those_in_the_store(opened: Opened, written: Written) -> None:
    store = Store(written.store)
    results = campaign_results(store, find_campaign(store, "pages"))
    assert len(results) == 4
    for result in results:
        row = opened.page.locator(f"#results tr:has(td[data-case='{result.run.case_id}'])")
        cells = row.locator("td")
        assert float(cells.nth(1).get_attribute("data-value")) == result.throughput.value
        assert cells.nth(1).inner_text() == f"{result.throughput.value:,.1f}"
        assert float(cells.nth(3).get_attribute("data-value")) == result.step_s.value


def test_the_first_screen_is_the_summary_that_the_command_printed(opened: Opened, written: Written) -> None:
    shown = opened.page.locator("#summary p").all_inner_texts()[:3]
    assert len(shown) == 3
    for sentence in shown:
        assert sentence in written.printed


def test_every_plot_is_drawn_and_no_problem_is_logged(opened: Opened) -> None:
    for name in PLOTS:
        box = opened.page.locator(f"#{name} svg.main-svg").first.bounding_box()
        assert box is not None, name
        assert box["width"] > 300, name
    assert opened.problems == []


def test_scaling_points_are_the_measured_throughputs(opened: Opened, written: Written) -> None:
    traces = opened.page.evaluate("document.getElementById('scaling-plot').data.filter(t => t.error_y).map(t => t.y)")
    store = Store(written.store)
    rates = [result.throughput.value for result in campaign_results(store, find_campaign(store, "pages"))]
    drawn = sorted(value for trace in traces for value in trace)
    assert drawn == pytest.approx(sorted(rates), rel=1e-5)


def test_the_timeline_shows_exchanges_of_real_steps_with_all_gradient_bytes(opened: Opened, written: Written) -> None:
    evidence = load_evidence(Store(written.store), find_campaign(Store(written.store), "pages"))
    for case in evidence:
        spans = [span for span in measured_step(case) if span.rank == 0]
        moved, made = (
            sum(span.size_bytes or 0 for span in spans if span.phase == phase) for phase in ("aggregate", "backward")
        )
        assert moved == (made if case.run.ranks > 1 else 0)
    drawn = opened.page.evaluate("JSON.parse(document.getElementById('figures').textContent)['timeline-plot-0'].data")
    assert {"rank 0 aggregate", "rank 1 aggregate"} <= {row for trace in drawn for row in trace["y"]}


def test_another_gap_can_be_chosen_and_the_timeline_zoomed_by_keyboard(opened: Opened) -> None:
    page = opened.page
    before = page.evaluate("document.getElementById('timeline-plot')._fullLayout.xaxis.range")
    page.locator("button[data-zoom=in]").focus()
    page.keyboard.press("Enter")
    page.wait_for_timeout(300)
    after = page.evaluate("document.getElementById('timeline-plot')._fullLayout.xaxis.range")
    assert after[1] - after[0] == pytest.approx((before[1] - before[0]) / 2, rel=0.01)
    chooser = page.locator("#timeline-plot-choice")
    chooser.focus()
    page.keyboard.press("ArrowDown")
    page.wait_for_timeout(300)
    assert "predicted" in page.locator("#timeline-plot").get_attribute("aria-label")
    assert opened.problems == []


def test_tables_are_sorted_and_saved_and_plots_are_saved(opened: Opened) -> None:
    page = opened.page
    heading = page.locator("#results th button", has_text="samples/s").first
    for order in (lambda values: values == sorted(values), lambda values: values == sorted(values, reverse=True)):
        heading.click()
        cells = page.locator("#results table").first.locator("tbody td:nth-child(2)").all()
        assert order([float(cell.get_attribute("data-value") or 0) for cell in cells])
    for section, button, ending in (("results", "CSV", ".csv"), ("scaling", "PNG", ".png")):
        with page.expect_download() as saved:
            page.locator(f"#{section} button", has_text=button).first.click()
        assert saved.value.suggested_filename.endswith(ending)
        assert Path(saved.value.path()).stat().st_size > 100
    assert opened.problems == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_reports_no_serious_accessibility_violation(browser: Browser, written: Written, scheme: str) -> None:
    context = browser.new_context(color_scheme=scheme, bypass_csp=True)  # type: ignore[arg-type]
    page = context.new_page()
    page.goto(written.page.as_uri())
    page.wait_for_selector("html[data-ready=yes]")
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    violations = Axe().run(page).response["violations"]
    serious = [
        (item["id"], item["nodes"][0]["html"][:200]) for item in violations if item["impact"] in ("serious", "critical")
    ]
    assert serious == []
    context.close()


@pytest.mark.parametrize("width", [360, 820, 1600])
def test_the_page_does_not_overflow_at_any_width(browser: Browser, written: Written, width: int) -> None:
    page = browser.new_page(viewport={"width": width, "height": 800})
    page.goto(written.page.as_uri())
    page.wait_for_selector("html[data-ready=yes]")
    page.wait_for_timeout(200)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.close()


def test_colours_follow_the_system_theme_and_the_theme_button(browser: Browser, written: Written) -> None:
    context = browser.new_context(color_scheme="dark")
    page = context.new_page()
    page.goto(written.page.as_uri())
    page.wait_for_selector("html[data-ready=yes]")
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.click("#theme")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark
    context.close()


def test_the_page_prints_as_pdf(opened: Opened, tmp_path: Path) -> None:
    path = tmp_path / "page.pdf"
    opened.page.pdf(path=str(path), format="A4")
    data = path.read_bytes()
    assert data.startswith(b"%PDF")
    assert 2 <= len(re.findall(rb"/Type\s*/Page\b", data)) <= 20


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", "../../etc/passwd"])
def test_hostile_names_execute_no_script(browser: Browser, tmp_path: Path, name: str) -> None:
    made = [Made(ranks=r, shown_network=name, host=name, strategy={"name": name}, aggregate=0.02) for r in (1, 2)]
    store = write(tmp_path / "results", made, study=name, title=name)
    path = tmp_path / "hostile.html"
    path.write_text(render_page(explain_campaign(store, "made-1")))
    page = browser.new_page()
    dialogs: list[str] = []
    page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-ready=yes]")
    assert page.locator("h1").inner_text() == name
    assert page.locator("body script:not([type])").count() == 2
    assert name in page.locator("#phases-plot").inner_text()
    assert dialogs == []
    page.close()
