from __future__ import annotations

import base64
import hashlib
import html
import importlib.resources
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from int8cal.data.checks import Finding
from int8cal.evaluation.result import FloatNode, Latency, LayerScales, OutputMetrics
from int8cal.evaluation.result_parts import Gate
from int8cal.numerics.metrics import EXACT_DB
from int8cal.quantization.table import WeightEntry
from int8cal.report.document import document_of
from int8cal.report.html import report_to_html
from int8cal.report.markdown import report_to_markdown
from int8cal.report.reading import verdict
from int8cal.report.terminal import report_lines

FINDING = Finding("grey", "all samples are grey", "check how they are read")
EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>"


class Reader(HTMLParser):
    """Collects tags with their attributes and the text between them, and checks that tags nest."""

    VOID = frozenset({"meta", "input", "line", "rect", "path", "br", "link", "img"})

    def __init__(self):
        super().__init__()
        self.tags, self.text, self.open = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID or tag in ("path", "rect"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        while self.open and self.open[-1] == "path" and tag != "path":
            self.open.pop()
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def read(text):
    reader = Reader()
    reader.feed(text)
    assert reader.open == []
    return reader


def visible(text):
    return " ".join(" ".join(read(re.sub(r"<(style|script)>.*?</\1>", "", text, flags=re.DOTALL)).text).split())


def many_scales(count):
    return [WeightEntry("int8", 0, "s8", tuple(1e-3 * (1 + (i * j) % 97) for j in range(1024))) for i in range(count)]


def evil_report(report):
    evaluation = report.evaluation
    layers = (replace(evaluation.layers[0], tensor=EVIL, node=EVIL, op_type=EVIL), *evaluation.layers[1:])
    return replace(
        report,
        model={"name": EVIL, EVIL: EVIL},
        settings={EVIL: {EVIL: [EVIL]}},
        evaluation=replace(
            evaluation,
            layers=layers,
            outputs={EVIL: OutputMetrics(sqnr_db=None, cosine=None)},
            fusion=replace(evaluation.fusion, nodes=(FloatNode(EVIL, EVIL, EVIL),)),
            saturation=replace(evaluation.saturation, target=EVIL, unsafe_channels=None),
            reasons={EVIL: EVIL, "layers": EVIL, "saturation": EVIL, "outputs": EVIL, "gates": EVIL},
            latency=None,
        ),
        gates=(Gate(EVIL, None, False),),
        warnings=(EVIL,),
        decisions=(EVIL,),
        timing_s={EVIL: 1.0},
        histograms=(replace(report.histograms[0], tensor=EVIL, method=EVIL, candidates={EVIL + "2": (0.0, 1.0)}),),
    )


@pytest.mark.parametrize("layers", [1, 3, 60])
def test_the_page_is_well_formed(build, layers):
    reader = read(report_to_html(build(layers)))
    ids = [attributes["id"] for _, attributes in reader.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = {attributes["href"].removeprefix("#") for tag, attributes in reader.tags if tag == "a"}
    assert links <= set(ids)


def test_nothing_is_loaded_from_anywhere(build):
    text = report_to_html(build(60))
    assert "url(" not in text.replace("return url(", "")
    assert "@import" not in text
    text = re.sub(r"/\*!.*?\*/", "", text, flags=re.DOTALL)  # where uPlot comes from is told, not asked
    assert "http:" not in text
    assert "https:" not in text
    for tag, attributes in read(text).tags:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base")
        assert "src" not in attributes
        assert attributes.get("href", "#").startswith("#")


def test_a_tensor_name_cannot_inject_markup(report):
    clean, evil = read(report_to_html(report)), read(report_to_html(evil_report(report)))
    assert [tag for tag, _ in evil.tags].count("script") == [tag for tag, _ in clean.tags].count("script") == 4
    for tag, attributes in evil.tags:
        assert tag != "img"
        assert not any(name.startswith("on") for name in attributes)
    assert "alert(1)" in "".join(evil.text)


def hashes(text, tag):
    found = re.findall(rf"<{tag}>(.*?)</{tag}>", text, flags=re.DOTALL)
    return {base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in found}


@pytest.mark.parametrize(("tag", "count"), [("script", 3), ("style", 2)])
def test_only_the_pages_own_scripts_and_styles_may_act(report, tag, count):
    text = report_to_html(report)
    policy = re.search(r'content="(default-src [^"]*)"', text).group(1)
    allowed = set(re.findall(r"'sha256-([^']*)'", re.search(rf"{tag}-src ([^;]*);", policy).group(1)))
    assert allowed == hashes(text, tag)
    assert len(allowed) == count
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy


def test_no_tag_has_a_style_attribute_since_the_policy_would_drop_it(build):
    assert not any("style" in attributes for _, attributes in read(report_to_html(build(60))).tags)


def test_the_vendored_library_is_the_released_one_and_brings_its_licence(report):
    vendored = importlib.resources.files("int8cal.report").joinpath("vendor/uplot")
    script = vendored.joinpath("uPlot.iife.min.js").read_bytes()
    assert hashlib.sha256(script).hexdigest() == "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f"
    assert "v1.6.32" in script[:80].decode()
    text = report_to_html(report)
    assert "The MIT License" in text
    assert "Leon Sorokin" in text
    assert script.decode() in text


def test_a_page_without_plots_leaves_the_library_out(empty_report):
    text = report_to_html(empty_report)
    assert "uPlot" not in text
    assert len(text) < 40_000


def test_the_numbers_of_the_plots_read_back(report):
    found = re.search(r'<script type="application/json" id="plots">(.*?)</script>', report_to_html(report)).group(1)
    data = json.loads(found)
    assert [each["counts"] for each in data["histograms"]] == [list(each.counts) for each in report.histograms]
    assert data["histograms"][0]["lines"][0] == ["kl", report.histograms[0].low, report.histograms[0].high, True]


def test_the_same_report_gives_the_same_page(build):
    assert report_to_html(build(12)) == report_to_html(build(12))


def test_a_hundred_tensors_stay_below_a_megabyte_and_a_thousand_below_a_few(build):
    assert len(report_to_html(build(100)).encode()) < 1_000_000
    weights = [LayerScales(f"n{i}", "Conv", f"w{i}", "", entry) for i, entry in enumerate(many_scales(1000))]
    large = replace(build(1000), weights=tuple(weights))
    large = replace(large, histograms=large.histograms[:500])
    assert len(report_to_html(large).encode()) < 5_000_000


def test_every_missing_figure_shows_its_reason_and_no_number(empty_report):
    text = visible(report_to_html(empty_report))
    assert "Top-1 drop not measured no labels" in text
    assert "Speedup not measured switched off" in text
    assert "Target portable: not measured: no reason was recorded" in text
    assert "✗ fail top1.drop<=1.0 not measured: no labels" in text
    assert "None" not in text
    assert " 0.00" not in text


def test_a_layer_without_sqnr_shows_its_reason(build):
    assert "not measured: the runtime fused this tensor away" in visible(report_to_html(build(12)))


def test_histograms_come_worst_layer_first(build):
    report = build(12)
    worst = min((x for x in report.evaluation.layers if x.sqnr_db is not None), key=lambda x: x.sqnr_db).tensor
    captions = re.findall(r'<figcaption>\s*<span class="name">(.*?)</span>', report_to_html(report))
    assert captions[0] == worst
    assert len(captions) == 12


def test_each_histogram_names_its_method_and_its_range(build):
    text = visible(report_to_html(build(3)))
    assert text.count(" chosen ") == 3
    assert "percentile 0" in text


def test_a_tensor_without_counts_says_so(report):
    bare = replace(report.histograms[0], counts=(), edges=())
    assert "No histogram: this tensor has no finite counts" in report_to_html(replace(report, histograms=(bare,)))


def test_settings_show_numbers_as_numbers(report):
    text = visible(report_to_html(replace(report, settings={"a": {"n": 1, "zero": 0, "on": True, "no": None}})))
    assert "a.n 1 a.no none a.on yes a.zero 0" in text


def test_the_page_names_the_int8_model_the_evaluation_data_and_the_versions(report, with_origin):
    text = visible(report_to_html(with_origin(report)))
    assert "on 900 samples of photos/val" in text
    assert "int8 model mobilenetv2.int8.onnx" in text
    assert "evaluation.data.labels folders" in text
    assert "Versions int8cal 0.1.0 onnxruntime 1.31.0" in text
    assert "versions.int8cal" not in text


@pytest.mark.parametrize(("count", "said"), [(13, "The other tensor"), (14, "The other 2 tensors")])
def test_what_is_folded_away_is_counted_in_words(build, count, said):
    assert f"{said} " in visible(report_to_html(build(count)))


@pytest.mark.parametrize("count", [2, 60])
def test_the_columns_in_network_order_take_the_full_width(build, count):
    columns = re.search(r'<svg class="columns">.*?</svg>', report_to_html(build(count)), flags=re.DOTALL).group()
    places = re.findall(r'class="hit" x="([\d.]+)%" width="([\d.]+)%"', columns)
    assert len(places) == count
    assert sum(map(float, places[-1])) == pytest.approx(100, abs=0.05)


def test_an_exact_layer_is_drawn_to_the_edge_and_named_as_it_is(report):
    layers = tuple(replace(report.evaluation.layers[0], sqnr_db=value) for value in (30.0, 75.5, EXACT_DB))
    page = report_to_html(replace(report, evaluation=replace(report.evaluation, layers=layers)))
    bars = re.findall(r'x="0.0%" width="([\d.]+)%" height="100%"/></svg>\s*<span class="good">([^<]*)', page)
    assert bars == [("50.0", "30.00 dB"), ("100.0", "75.50 dB"), ("100.0", "exact")]


def test_a_gate_that_is_always_on_and_passed_has_no_card_beside_a_verdict_without_gates(report):
    standing = Gate("outputs.dead<=0", 0.0, passed=True)
    page = report_to_html(replace(report, gates=(standing,)))
    assert "no accuracy gates set" in page
    assert "<h2>Gates</h2>" not in page
    failed = report_to_html(replace(report, gates=(replace(standing, value=1.0, passed=False),)))
    assert "<h2>Gates</h2>" in failed
    assert '<span class="pill fail">✗ the accuracy gate failed</span>' in failed


def test_findings_are_shown_where_there_is_no_other_warning(report):
    page = report_to_html(replace(report, findings=(FINDING,), warnings=(str(FINDING),)))
    assert f"<strong>Check the data.</strong> {FINDING}" in page


def test_the_verdict_is_the_same_phrases_in_every_view(report):
    slower = replace(report.evaluation, latency=Latency(2.0, 2.5, 0.8, (0.75, 0.84)))
    each = replace(report, evaluation=slower, findings=(FINDING,), warnings=(str(FINDING),))
    texts = [phrase.text for phrase in verdict(document_of(each))]
    assert texts == ["check the data", "1 of 2 accuracy gates failed", "slower than FP32 (0.80x)"]
    pills = re.findall(r'<span class="pill \w+">(?:[!✗✓] )?([^<]+)</span>', report_to_html(each))
    assert pills[:3] == texts
    assert "**Check the data; 1 of 2 accuracy gates failed; slower than FP32 (0.80x)**" in html.unescape(
        report_to_markdown(each).replace("\\", "")
    )
    assert "; ".join(texts) in report_lines(document_of(each))[0]


def test_columns_of_the_layer_table_that_would_be_empty_are_left_out(report):
    layers = tuple(replace(each, clipped=None) for each in report.evaluation.layers)
    ranged = tuple(replace(each, dtype="uint8", low=0.0, high=1.0, method="mse") for each in report.evaluation.layers)
    for changes, more in (
        ({"layers": layers, "fusion": None}, []),
        ({"layers": ranged}, ["Clipped", "Activation range", "Kernel"]),
    ):
        page = report_to_html(replace(report, evaluation=replace(report.evaluation, **changes)))
        head, body = page[page.index('id="layer-table"') : page.index('<section id="ranges">')].split("</thead>")
        heads = ["#", "Layer", "Op", "SQNR", *more]
        assert re.findall(r"<th [^>]*>([^<]*)</th>", head) == heads
        assert list(dict.fromkeys(re.findall(r'data-head="([^"]*)"', body))) == heads
