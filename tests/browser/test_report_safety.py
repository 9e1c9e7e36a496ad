"""What report.html must never do, whatever names a model brings, and what everybody must be able to read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from int8cal.evaluation.result import FloatNode, OutputMetrics
from int8cal.evaluation.result_parts import Gate
from int8cal.report.html import report_to_html

pytestmark = pytest.mark.browser

NAMES = [
    "</script><script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "a\u2028alert(1)\u2029b",
    "{{7*7}}{% raw %}${alert(1)}",
    "javascript:alert(1)",
    "<!--<script>",
    "]]></svg></title><svg onload=alert(1)>",
    "\u202ereversed\x00\x1b[31m",
    "https://example.org/x.png",
]
# Each text on the page, with its contrast to what lies behind it.
CONTRAST = """() => {
    const luminance = ([r, g, b]) => [r, g, b].reduce((sum, value, i) => {
        const c = value / 255;
        return sum + [0.2126, 0.7152, 0.0722][i] * (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    }, 0);
    const parse = (text) => text.match(/[\\d.]+/g).map(Number);
    const found = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        const node = walker.currentNode.parentElement;
        if (!walker.currentNode.textContent.trim() || !node.checkVisibility() || node.closest("script, title, .skip")) continue;
        const style = getComputedStyle(node);
        const front = parse(node.closest("svg") ? style.fill : style.color);
        let behind = node;
        while (behind && (parse(getComputedStyle(behind).backgroundColor)[3] ?? 1) === 0) behind = behind.parentElement;
        const back = behind ? parse(getComputedStyle(behind).backgroundColor) : [255, 255, 255];
        const [a, b] = [luminance(front), luminance(back)];
        found.push([(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), walker.currentNode.textContent.trim().slice(0, 40)]);
    }
    return found;
}"""

# Whatever reaches beyond the window and lies in nothing that scrolls or cuts it off.
WIDER = """(width) => [...document.body.querySelectorAll("*")].filter((e) => {
    if (e.getBoundingClientRect().right <= width + 1 || e.closest(".skip")) return false;
    for (let p = e.parentElement; p; p = p.parentElement) if (getComputedStyle(p).overflowX !== "visible") return false;
    return true;
}).map((e) => `${e.tagName} ${e.className}: ${e.textContent.slice(0, 30)}`)"""


def named(report, name):
    """Put a name wherever a model's file or the user's settings can bring one."""
    evaluation = report.evaluation
    layers = (replace(evaluation.layers[0], tensor=name, node=name, op_type=name), *evaluation.layers[1:])
    first, *others = report.histograms
    weight = replace(report.weights[0], node=name, weight=name, tensor=name, op_type=name)
    return replace(
        report,
        model={"name": name, "int8": name, name: name},
        settings={name: {name: [name]}, "evaluation": {"data": {"path": name}}, "versions": {name: name}},
        evaluation=replace(
            evaluation,
            layers=layers,
            outputs={name: OutputMetrics(sqnr_db=None, cosine=None)},
            fusion=replace(evaluation.fusion, nodes=(FloatNode(name, name, name),)),
            saturation=replace(evaluation.saturation, target=name),
            reasons={name: name, "outputs": name},
        ),
        gates=(Gate(name, None, False),),
        warnings=(name,),
        decisions=(name,),
        timing_s={name: 1.0},
        histograms=(replace(first, tensor=name, method=name, candidates={f"{name}2": (0.0, 1.0)}), *others),
        weights=(weight, *report.weights[1:]),
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_text_and_nothing_else(show, build, name):
    page = show(named(build(), name))
    page.locator("#ranges .chart").first.scroll_into_view_if_needed()
    page.locator("#ranges .chart canvas").first.wait_for()
    page.locator("#weights").scroll_into_view_if_needed()
    page.hover("#layer-table tbody tr")
    page.click("#layer-table th:nth-child(2) button")
    page.fill("input.filter", "alert")
    assert page.locator("img, iframe, object, embed, link, base").count() == 0
    texts = page.eval_on_selector_all("#ranges figcaption .name", "all => all.map(one => one.textContent)")
    # HTML knows no zero byte
    assert name.replace("\x00", "") in texts
    assert page.evaluate(
        "[...document.querySelectorAll('*')].every(e => ![...e.attributes].some(a => /^on/.test(a.name)))"
    )


def test_every_text_has_contrast_enough(show, build):
    for scheme in ("light", "dark"):
        page = show(build(), scheme=scheme)
        page.evaluate("document.querySelectorAll('details').forEach(fold => { fold.open = true; })")
        found = page.evaluate(CONTRAST)
        assert len(found) > 300
        assert [text for ratio, text in found if ratio < 4.5] == []


def test_the_contrast_is_measured(show, build):
    page = show(build())
    page.evaluate("document.querySelector('footer').style.color = 'rgb(190, 195, 200)'")
    assert [text[:7] for ratio, text in page.evaluate(CONTRAST) if ratio < 4.5] == ["Made by"]


@pytest.mark.parametrize("width", [360, 720, 1600])
def test_nothing_makes_the_page_wider_than_its_window(show, build, width):
    long = "/very" * 40 + "_and_no_place_to_break" * 4
    for report in (build(40), named(build(), long)):
        page = show(report, width=width)
        page.evaluate("document.querySelectorAll('details').forEach(fold => { fold.open = true; })")
        page.locator("#ranges .chart").first.scroll_into_view_if_needed()
        page.locator("#ranges .chart canvas").first.wait_for()
        assert page.evaluate(WIDER, width) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize(
    ("planted", "said"),
    [
        ("<script>alert(1)</script>", "policy: script-src"),
        ("<p style='color: red'>x</p>", "policy: style-src"),
        ("<img src='https://example.org/x.png'>", "policy: img-src"),
        ("<p onclick='alert(1)' id=planted>x</p>", "policy: script-src"),
    ],
)
def test_what_the_policy_forbids_does_not_happen_and_is_noticed(open_html, build, planted, said):
    opened = open_html(report_to_html(build()).replace("</main>", f"{planted}</main>"))
    opened.evaluate("document.getElementById('planted')?.click()")
    opened.wait_for_timeout(100)
    assert any(said in line for line in opened.complaints)
    assert "1" not in opened.complaints  # what alert would have said


def test_a_page_that_complains_or_asks_for_files_is_noticed(open_html):
    opened = open_html("<script>console.error('broken'); undefined_name();</script><img src='missing.png'>")
    assert any("broken" in line for line in opened.complaints)
    assert any("undefined_name" in line for line in opened.complaints)
    assert [url.rpartition("/")[2] for url in opened.requests] == ["missing.png"]
