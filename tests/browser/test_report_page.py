"""What a reader of report.html sees, and can do."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from int8cal.evaluation.result import LayerScales, Machine, Origin, TensorHistogram
from int8cal.evaluation.result_parts import DecisionFigure
from int8cal.quantization.table import WeightEntry

pytestmark = pytest.mark.browser

CHART = "#ranges .chart"


def column(page, index):
    return page.evaluate(
        "i => [...document.querySelectorAll('#layer-table tbody tr')].filter(r => !r.hidden)"
        ".map(r => r.cells[i].dataset.value)",
        index,
    )


def view(page, chart=CHART):
    page.wait_for_selector(f"{chart} canvas")
    low, high = page.eval_on_selector(chart, "c => [c.dataset.low, c.dataset.high]")
    return float(low), float(high)


def drawn(page, chart=CHART):
    page.locator(chart).first.scroll_into_view_if_needed()
    page.wait_for_selector(f"{chart} canvas")
    return page.eval_on_selector(f"{chart} canvas", "c => c.toDataURL()")


def colours(page, name, chart=CHART):
    """Count the pixels of a chart in one of the page's colours."""
    page.locator(chart).first.scroll_into_view_if_needed()
    page.wait_for_selector(f"{chart} canvas")
    return page.evaluate(
        """([chart, name]) => {
            const probe = document.body.appendChild(document.createElement("i"));
            probe.style.color = `var(--${name})`;
            const [r, g, b] = getComputedStyle(probe).color.match(/\\d+/g).map(Number);
            probe.remove();
            const {width, height} = document.querySelector(chart + " canvas");
            const copy = new OffscreenCanvas(width, height).getContext("2d", {willReadFrequently: true});
            copy.drawImage(document.querySelector(chart + " canvas"), 0, 0);
            const {data} = copy.getImageData(0, 0, width, height);
            let count = 0;
            for (let i = 0; i < data.length; i += 4) count += data[i] === r && data[i + 1] === g && data[i + 2] === b;
            return count;
        }""",
        [chart, name],
    )


def test_verdict_and_figures_come_first(show, build):
    page = show(build())
    text = page.inner_text("body")
    assert "1 of 2 accuracy gates failed" in page.inner_text("header")
    order = ["✗ fail", "Is it good enough?", "24.61 dB", "0.22 points", "Is it faster and smaller?", "2.00x"]
    order += ["Where to look", "Worst layer", "53 of 55 nodes", "Layer table", "Activation ranges", "Weight ranges"]
    for part in order:  # each behind the one before; gates above have figures with units, too
        assert part in text
        text = text.partition(part)[2]


def test_marks_say_in_words_what_runs_where_and_what_can_saturate(show, build):
    page = show(build())
    rows = page.inner_text("#layer-table tbody")
    assert rows.count("can saturate") == 1
    assert "integer" in rows
    assert "safe" in rows


def test_headers_sort_by_click_and_by_key_and_what_was_not_measured_stays_last(show, build):
    page = show(build())
    before = column(page, 3)
    known = [float(value) for value in before if value]
    assert known == sorted(known)
    page.click("#layer-table th.sqnr button")
    after = column(page, 3)
    assert [float(value) for value in after if value] == known[::-1]
    assert before[-1] == after[-1] == ""
    assert page.get_attribute("#layer-table th.sqnr", "aria-sort") == "descending"
    page.focus("#layer-table th:nth-child(1) button")
    page.keyboard.press("Enter")
    assert column(page, 0) == [str(i + 1) for i in range(12)]
    assert page.get_attribute("#layer-table th.sqnr", "aria-sort") is None


def test_the_filter_keeps_rows_that_hold_every_word(show, build):
    page = show(build())
    page.fill("input.filter", "conv saturate")
    assert page.inner_text("#layer-count") == "1 of 12"
    assert len(column(page, 0)) == 1
    page.fill("input.filter", "nothing like it")
    assert column(page, 0) == []
    page.fill("input.filter", "")
    assert len(column(page, 0)) == 12


def test_a_histogram_zooms_by_dragging_buttons_keys_and_wheel_and_goes_back(show, build):
    page = show(build())
    page.locator(CHART).first.scroll_into_view_if_needed()
    whole = drawn(page)
    full = view(page)
    box = page.locator(f"{CHART} .u-over").first.bounding_box()
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 0.25 * box["width"], middle)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.5 * box["width"], middle, steps=4)
    page.mouse.up()
    low, high = view(page)
    width = full[1] - full[0]
    assert low == pytest.approx(full[0] + 0.25 * width, abs=0.02 * width)
    assert high == pytest.approx(full[0] + 0.5 * width, abs=0.02 * width)
    assert drawn(page) != whole
    page.mouse.wheel(0, -100)
    assert view(page)[1] - view(page)[0] < high - low
    page.keyboard.press("0")
    assert view(page) == full
    page.keyboard.press("+")
    page.keyboard.press("ArrowRight")
    assert view(page)[0] > full[0] + 0.3 * width
    page.locator(CHART).first.get_by_role("button", name="Reset").click()
    assert view(page) == full
    page.locator(CHART).first.get_by_role("button", name="Zoom in").click()
    assert view(page)[1] - view(page)[0] == pytest.approx(width / 2)
    page.mouse.dblclick(box["x"] + 9, middle)
    assert view(page) == full


def test_without_the_focus_the_wheel_scrolls_the_page(show, build):
    page = show(build())
    page.locator(CHART).first.scroll_into_view_if_needed()
    full = view(page)
    page.locator(f"{CHART} .u-over").first.hover()
    page.mouse.wheel(0, -300)
    assert view(page) == full


def test_a_histogram_shows_what_is_kept_clipped_and_each_range(show, build):
    page = show(build())
    chart = "#tensor-0 .chart"
    assert colours(page, "good-bar", chart) > 500
    assert colours(page, "poor-bar", chart) > 50
    assert colours(page, "m-kl", chart) > 50
    assert colours(page, "m-mse", chart) > 20
    assert "kl" in page.inner_text("#tensor-0 .ranges .chosen")
    assert page.locator("#tensor-0 .ranges li").count() == 4
    logarithmic = drawn(page, chart)
    page.locator(chart).get_by_role("button", name="Logarithmic axis").click()
    assert drawn(page, chart) != logarithmic


def test_of_many_charts_the_later_ones_are_drawn_when_they_come_into_view_and_given_up_after(show, build):
    page = show(build(120))
    assert page.locator("canvas").count() < 20
    unfold(page)
    last = page.locator(CHART).last
    last.scroll_into_view_if_needed()
    last.locator("canvas").wait_for()
    page.locator("header").scroll_into_view_if_needed()
    last.locator("canvas").wait_for(state="detached")
    assert page.locator("canvas").count() < 80


def unblank(page, count):
    """Require that a picture of the whole page shows so many histograms, each with bars."""
    boxes = [figure.bounding_box() for figure in page.locator("#ranges figure").all() if figure.is_visible()]
    assert len(boxes) == count
    picture = Image.open(io.BytesIO(page.screenshot(full_page=True))).convert("RGB")
    kept = page.evaluate("getComputedStyle(document.querySelector('.back-good')).backgroundColor")
    colour = tuple(map(int, re.findall(r"\d+", kept)[:3]))
    for box in boxes:
        corners = (box["x"], box["y"], box["x"] + box["width"], box["y"] + box["height"])
        pixels = np.asarray(picture.crop(tuple(map(round, corners))))
        assert (pixels == colour).all(axis=-1).sum() > 100


def unfold(page):
    page.evaluate("document.querySelectorAll('details').forEach(fold => { fold.open = true; })")


def test_a_picture_of_the_whole_page_has_every_histogram(show, build):
    page = show(build(30))
    unblank(page, 12)
    unfold(page)
    unblank(page, 30)


def test_paper_has_every_histogram_that_is_not_folded_away(show, build):
    page = show(build(60), scheme="dark")
    unfold(page)
    page.emulate_media(media="print")
    page.locator("#ranges .chart:not(:has(canvas))").wait_for(state="detached")
    unblank(page, 60)
    page.emulate_media(media="screen")
    page.wait_for_selector("html:not([data-theme])")


def test_a_link_opens_the_folded_histogram_that_it_names(show, build):
    page = show(build(60))
    folded = page.locator("#ranges details figure").first
    name = folded.get_attribute("id")
    assert not folded.is_visible()
    page.locator(f"#layer-table a[href='#{name}']").click()
    folded.locator("canvas").wait_for()


def test_the_channels_of_a_chosen_weight_are_shown(show, build):
    page = show(build())
    chart = "#channel-chart"
    page.locator("#weights").scroll_into_view_if_needed()
    first = drawn(page, chart)
    page.locator("#weights button[data-show]").last.click()
    page.wait_for_selector(f"{chart} canvas")
    assert drawn(page, chart) != first
    numbers = page.eval_on_selector_all("#weights-of option", "all => all.map(one => one.value)")
    ends = set()
    for number in numbers:
        page.select_option("#weights-of", number)
        ends.add(view(page, chart)[1])
        assert colours(page, "good-bar", chart) > 20
    assert ends == {7.5, 299.5}  # layers of 8 channels, and one of 300


def test_an_evaluation_alone_says_what_is_not_known(show, build):
    bare = replace(build(), histograms=(), weights=(), tensors={})
    text = show(bare).inner_text("body")
    assert "No histograms: this report was made without calibration statistics." in text
    assert "Not known: weight scales are in the reports that int8cal calibrate writes" in text


def test_without_scripts_everything_but_histograms_is_there(show, build):
    page = show(build(), scripts=False)
    assert page.locator("#layer-table tbody tr").count() == 12
    assert page.locator("#weights .spread").first.is_visible()
    assert "without it, only the ranges are shown" in page.inner_text("#ranges")


def test_the_theme_button_goes_through_the_themes(show, build):
    page = show(build(), scheme="dark")
    back = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(back)
    histogram = drawn(page)
    page.click("#theme")
    assert page.inner_text("#theme") == "Theme: light"
    assert page.evaluate(back) != dark
    assert drawn(page) != histogram
    page.click("#theme")
    assert page.evaluate(back) == dark
    page.reload()
    assert page.inner_text("#theme") == "Theme: dark"


def test_on_paper_the_page_is_light_and_shows_the_whole_table(show, build):
    page = show(build(40), scheme="dark")
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    table = page.locator(".tall").bounding_box()["height"]
    assert table >= page.locator("#layer-table").bounding_box()["height"]
    assert not page.locator("nav").is_visible()
    assert page.pdf().startswith(b"%PDF")


def test_paper_has_what_a_click_would_open_and_nothing_to_click(show, build):
    page = show(replace(build(), decisions=("not quantized: Conv a: excluded",)))
    words = page.locator("#words table")
    assert not words.is_visible()
    page.emulate_media(media="print")
    assert words.is_visible()
    assert page.get_by_text("not quantized: Conv a: excluded").is_visible()
    assert not page.locator(".hint").first.is_visible()
    look = "([name, part]) => getComputedStyle(document.querySelector(name), part).display"
    assert page.evaluate(look, ["th button", "::after"]) == "none"
    assert page.evaluate(look, ["th button", None]) == "contents"  # else Chromium does not repeat heads on pages
    assert page.locator(".channels label").is_visible()  # whose channels the chart shows


def test_on_paper_charts_stay_within_their_cards_whatever_width_they_were_drawn_for(show, build):
    page = show(build())
    page.emulate_media(media="print")
    page.wait_for_selector("#channel-chart canvas")
    page.evaluate("document.querySelectorAll('.u-wrap').forEach(wrap => { wrap.style.width = '3000px'; })")
    over = """charts => charts.filter(chart => chart.getBoundingClientRect().right
        > chart.closest('figure, .card').getBoundingClientRect().right).length"""
    assert page.locator("canvas").count() > 10
    assert page.eval_on_selector_all("canvas", over) == 0


def test_names_of_settings_take_one_line(show, build):
    settings = {"evaluation": {"data": {"preprocess": {"resize": 32, "layout": "NCHW"}}}, "method": "auto"}
    page = show(replace(build(), settings=settings))
    heights = page.eval_on_selector_all(".settings th", "names => names.map(name => name.clientHeight)")
    assert len(heights) == 3
    assert max(heights) == min(heights)


@pytest.fixture
def with_decisions(build):
    """A report with every table that has many columns."""
    report = build()
    drop = replace(report.evaluation.metrics.top1, drop=-10.25, drop_ci95=(-13.75, -11.25))
    how = "share of samples whose largest of 1000 scores is the same one; interval exact, of a proportion of samples"
    figure = DecisionFigure(
        figure="top1_agreement", kind="class scores", value=0.9944, ci95=(0.9921, 0.996), samples=900, how=how
    )
    outputs = {name: replace(each, decisions=(figure,) * 3) for name, each in report.evaluation.outputs.items()}
    metrics = replace(report.evaluation.metrics, top1=drop, top5=drop)
    return replace(report, evaluation=replace(report.evaluation, metrics=metrics, outputs=outputs))


@pytest.mark.parametrize("width", [360, 400, 720, 800, 1400])
def test_no_table_is_cut_off_but_that_of_layers_on_a_small_screen(show, with_decisions, width):
    page = show(with_decisions, width=width)
    page.evaluate("document.querySelectorAll('details').forEach(fold => { fold.open = true; })")
    cut = page.evaluate(
        "[...document.querySelectorAll('.scroll')].filter(each => each.scrollWidth > each.clientWidth + 1)"
        ".map(each => each.closest('.card').querySelector('h2, h3').textContent)"
    )
    assert cut == (["Layer table"] if width == 800 else [])


def test_on_a_phone_each_value_stands_beside_its_head_and_layers_are_sorted_all_the_same(show, with_decisions):
    page = show(with_decisions, width=400)
    assert page.locator("#decisions thead").bounding_box()["x"] < 0
    heads = page.locator("#decisions thead th").all_inner_texts()
    row = page.locator("#decisions tbody tr").first.locator("td")
    assert [each.get_attribute("data-head") for each in row.all()] == heads
    assert row.nth(4).evaluate("cell => getComputedStyle(cell, '::before').content") == '"95 % interval"'
    known = page.locator("#decisions td[data-head='95 % interval']").first
    assert known.inner_text() == "0.9921 to 0.996"
    assert known.bounding_box()["height"] < 30  # one line
    before = column(page, 3)
    page.click("#layer-table th.sqnr button")
    assert column(page, 3) == [each for each in reversed(before) if each] + [each for each in before if not each]


def test_odd_numbers_are_drawn_without_complaint(show, build):
    report = build(6)
    odd = [
        ((0.0, 1e38, 3e38), (1, 2), 0.0, 3e38),
        ((3.0, 3.0), (7,), 3.0, 3.0),
        ((-1e-38, 1e-38), (10**12,), -1e-38, 1e-38),
        ((0.0, 1.0, 5.0), (0, 1), -9.0, 9.0),  # bins of different width, and a range beyond them
    ]
    plots = tuple(
        TensorHistogram(f"odd{i}", edges, counts, low, high, "max", {"kl": (low * 2, high * 3)})
        for i, (edges, counts, low, high) in enumerate(odd)
    )
    scales = [(1.0,), (1e-45, 3e38), (0.25,) * 700, (0.0, 1.0)]
    weights = tuple(
        LayerScales(f"n{i}", "Conv", "w", "", WeightEntry("int8", 0, "s8", each)) for i, each in enumerate(scales)
    )
    page = show(replace(report, histograms=plots, weights=weights))
    for number in range(len(odd)):
        chart = f"#tensor-{number} .chart"
        drawn(page, chart)
        low, high = view(page, chart)
        assert low < high
        for key in ("+", "l", "ArrowLeft", "0"):
            page.locator(chart).press(key)
        assert view(page, chart) == (low, high)
    # a scale of 0 has no place on an axis of powers of ten, and is left out
    options = page.locator("#weights-of option").evaluate_all("found => found.map(each => each.value)")
    assert sorted(filter(None, options)) == [str(number) for number in range(len(scales))]
    for number in map(str, range(len(scales))):
        page.select_option("#weights-of", number)
        drawn(page, "#channel-chart")
        page.locator("#channel-chart").press("l")


def test_the_card_of_classes_does_not_scroll_on_a_laptop(show, build):
    report = build()
    drop = replace(report.evaluation.metrics.top1, drop=-10.25, drop_ci95=(-13.75, -11.25))
    metrics = replace(report.evaluation.metrics, top1=drop, top5=drop)
    page = show(replace(report, evaluation=replace(report.evaluation, metrics=metrics)), width=1265)  # and a scroll bar
    card = page.locator(".card", has=page.locator("h3", has_text="Classification"))
    assert card.evaluate("each => each.scrollWidth <= each.clientWidth")
    assert page.locator("h3", has_text="Accuracy over latency").count() == 1


def test_the_command_takes_the_width_that_there_is_and_breaks_between_its_words(show, build):
    machine = Machine(
        cpu="cpu", flags=(), physical_cores=2, logical_cores=2, threads=2, system="Linux", python="3.11", runtimes={}
    )
    command = "int8cal calibrate model.onnx" + " --overwrite" * 30
    page = show(replace(build(), origin=Origin("2026-01-01T00:00:00Z", command, machine)))
    code = page.locator(".origin code")
    assert code.inner_text() == command
    assert code.bounding_box()["width"] > 1100
    rows = code.locator("span").evaluate_all(
        """words => words.map(word => {
            const text = document.createRange();
            text.selectNodeContents(word);
            return text.getClientRects().length;
        })"""
    )
    assert rows == [1] * 33
