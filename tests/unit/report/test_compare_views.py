import json

import pytest
from made_reports import compared

from int8cal.report.comparison_views import (
    JudgedComparison,
    compare_json,
    compare_lines,
    compare_markdown,
    compare_suite,
    outcome,
)
from int8cal.report.markdown import LIMIT, length
from int8cal.report.regressions import judge_limits, judge_regressions, parse_limit

EVIL = "a|b`<script>alert(1)</script>\x1b[31m@me"


@pytest.fixture
def judge(old, new):
    def judge(*limits, regressions=False):
        found = compared(old, new)
        verdicts = judge_limits([parse_limit(text) for text in limits], found)
        return JudgedComparison(
            found, ("old.json", "new.json"), verdicts, judge_regressions(found) if regressions else ()
        )

    return judge


def worsen(new):
    new["metrics"].update(sqnr_db=28.0, sqnr_db_ci95=[27.0, 29.0])
    new["layers"][1]["sqnr_db"] = 20.0
    new["fusion"]["nodes"].append({"node": "conv_a", "op_type": "Conv", "reason": "not quantized"})
    new["fusion"]["float"] = 2
    new["settings"]["recipe"] = "accurate"
    new["model"]["sha256"] = "cd" * 32


def test_the_terminal_shows_both_sides_what_changed_and_the_verdict(judge, new):
    worsen(new)
    lines = compare_lines(judge("sqnr_db.drop<=0.5", "top1.drop.rise<=0.2"))
    text = "\n".join(line.rstrip() for line in lines)
    assert "SQNR                        31.50 dB     28.00 dB     -3.50 dB     worse" in text
    assert "b                          Conv  25.00 dB  20.00 dB  -5.00 dB" in text
    assert "From integer to float  conv_a" in text
    assert "Changed recipe         fast to accurate" in text
    assert "the float models differ: sha256 abababababab… and cdcdcdcdcdcd…" in text
    assert "FAIL                   sqnr_db.drop<=0.5  (3.5)" in text
    assert "pass                   top1.drop.rise<=0.2  (0)" in text
    assert lines[-1] == "Verdict                1 of 2 checks failed"


@pytest.mark.parametrize(
    ("limits", "regressions", "phrase"),
    [
        ((), False, "no limits set"),
        (("sqnr_db.drop<=1",), False, "within all limits"),
        ((), True, "no regression"),
        (("sqnr_db.drop<=-1",), True, "1 of 10 checks failed"),
    ],
)
def test_the_outcome_says_what_was_looked_at(judge, limits, regressions, phrase):
    assert outcome(judge(*limits, regressions=regressions)) == phrase


def test_warnings_stand_before_the_figures_and_hashes_are_no_settings(judge, new):
    worsen(new)
    new["model"]["data_fingerprint"] = new["model"]["run"] = "f" * 32
    lines = compare_lines(judge())
    assert lines[2] == "warning: the float models differ: sha256 abababababab… and cdcdcdcdcdcd…"
    assert not [line for line in lines[3:] if "sha256" in line or "model.run" in line]
    new["model"]["name"] = "other.onnx"
    assert compare_lines(judge())[2].startswith("warning: the float models differ: net.onnx and other.onnx, sha256 ab")


def test_of_different_networks_only_figures_stand_side_by_side(judge, new):
    worsen(new)
    for at, layer in enumerate(new["layers"]):
        layer["tensor"] = f"other_{at}"
    judged = judge()
    lines, comment = compare_lines(judged), compare_markdown(judged)
    assert "SQNR                        31.50 dB     28.00 dB" in [line.rstrip() for line in lines]
    for text in ("\n".join(lines), comment):
        assert not [word for word in ("worse", "other_0", "conv_a", "measured: a") if word in text]
    assert json.loads(compare_json(judged))["gained_layers"] == ["other_0", "other_1", "other_2"]


def test_the_comment_has_the_verdict_first_and_the_rest_folded(judge, new):
    worsen(new)
    text = compare_markdown(judge("sqnr_db.drop<=0.5", regressions=True))
    assert text.startswith("<!-- int8cal compare -->\n\n## ❌ int8cal: `net.onnx`, 3 of 10 checks failed\n")
    assert "- ❌ `sqnr_db.drop<=0.5`: 3.5\n" in text
    assert "- ❌ `fusion.float not worse`: worse by 1\n" in text
    assert "| SQNR | 31.50 dB | 28.00 dB | -3.50 dB | worse |" in text
    assert "- ⚠️ the float models differ" in text
    assert "| `recipe` | `fast` | `accurate` |" in text
    assert text.count("<details>") == text.count("</details>") == 4


def test_what_did_not_change_is_not_listed(judge):
    text = compare_markdown(judge())
    assert "Layers" not in text
    assert "Changed" not in text
    assert "✅ int8cal" not in text
    assert "## int8cal: `net.onnx`, no limits set" in text


def test_it_fits_into_a_comment_and_names_are_text(judge, old, new):
    for document, value in ((old, 30.0), (new, 20.0)):
        document["layers"] = [
            {"tensor": EVIL * 9 + str(i), "node": "n", "op_type": EVIL, "sqnr_db": value, "clipped": None}
            for i in range(999)
        ]
        document["settings"] = {f"{EVIL}{i}": f"{EVIL * 9}{value}" for i in range(999)}
        document["model"]["name"] = EVIL
        document["outputs"] = {f"{EVIL}{i}": {"sqnr_db": value, "cosine": 1.0} for i in range(500)}
    new["fusion"]["nodes"] = [{"node": EVIL, "op_type": "Conv", "reason": ""}] * 50
    text = compare_markdown(judge(regressions=True))
    assert length(text) <= LIMIT
    assert "| SQNR | 31.50 dB |" in text
    assert "more, in the reports." in text
    for shown in (text, "\n".join(compare_lines(judge()))):
        assert "\x1b" not in shown
    assert "<script>" not in text
    assert "@me" not in text


def test_json_holds_everything_in_a_fixed_order(judge, new):
    worsen(new)
    text = compare_json(judge("sqnr_db.drop<=0.5", regressions=True))
    assert text == compare_json(judge("sqnr_db.drop<=0.5", regressions=True))
    document = json.loads(text)
    assert list(document) == [
        "format",
        "version",
        "old",
        "new",
        "figures",
        "layers",
        "lost_layers",
        "gained_layers",
        "to_float",
        "to_integer",
        "gates",
        "settings",
        "settings_only_old",
        "settings_only_new",
        "warnings",
        "limits",
        "gates_gone",
        "regressions",
    ]
    assert (document["format"], document["version"]) == ("int8cal/compare", 1)
    assert document["figures"][0] == {
        "figure": "sqnr_db",
        "old": 31.5,
        "new": 28.0,
        "worse_by": 3.5,
        "worse_by_ci95": [pytest.approx(3.5 - 2**0.5), pytest.approx(3.5 + 2**0.5)],
        "verdict": "worse",
    }
    assert document["layers"][0]["drop_db"] == 5.0
    assert document["to_float"] == ["conv_a"]
    assert document["limits"] == [{"gate": "sqnr_db.drop<=0.5", "value": 3.5, "passed": False}]
    assert len(document["regressions"]) == 9


def test_settings_of_one_report_alone_are_counted(judge, old, new):
    old["settings"]["calibration"] = {"method": "kl", "samples": 8}
    new["settings"]["runtime"] = "onnxruntime"
    judged = judge()
    old, new = "2 settings: calibration.method, calibration.samples", "1 setting: runtime"
    lines, page = compare_lines(judged), compare_markdown(judged)
    for which, told in (("old", old), ("new", new)):
        assert any(line.split("  ") == [f"In the {which} report alone", told] for line in lines)
        assert f"- In the {which} report alone: {told}\n" in page
    assert "absent" not in "\n".join(compare_lines(judged))
    assert json.loads(compare_json(judged))["settings_only_old"] == ["calibration.method", "calibration.samples"]


def test_what_got_better_is_said_to_be_better(judge, new):
    new["metrics"].update(sqnr_db=35.0, sqnr_db_ci95=[34.0, 36.0])
    new["size"]["int8_bytes"] = 900
    lines = compare_lines(judge(regressions=True))
    assert "pass     sqnr_db not worse  (better by 3.5, 95 % interval 2.086 to 4.914)" in lines
    assert "pass     size.int8_bytes not worse  (better by 100)" in lines
    assert "pass     fusion.float not worse  (unchanged)" in lines


def test_every_check_is_a_test_case(judge, new):
    worsen(new)
    suite = compare_suite(judge("sqnr_db.drop<=0.5", regressions=True))
    assert suite.name == "net.onnx"
    assert [case.outcome for case in suite.cases][:3] == ["passed", "failure", "failure"]
    assert suite.cases[2].message == "worse by 3.5, 95 % interval 2.086 to 4.914"
    assert len(suite.cases) == 11
