"""A bad YAML of each kind ends with exit code 2 and one line: file, line, what was expected, what to do."""

import re
import shutil
from pathlib import Path

import pytest

from int8cal.cli.main import main

SAMPLE = Path(__file__).parents[2] / "sample_data"
JOB = "model: net.onnx\ndata: d\n"

# Kind -> the file, the line (0: none to name), and what the message must hold: the mistake, then the suggestion.
BAD = {
    # not YAML
    "an open bracket": (JOB + "output: {dir: x\n", 4, "is not valid YAML", "check quotes, brackets"),
    "a tab": (JOB + "output:\n\tdir: x\n", 4, r"'\t'", "indent with spaces"),
    "wrong indentation": ("model: net.onnx\n data: d\n", 2, "mapping values are not allowed", "align the keys"),
    "a colon in text": ("model: a: b\n", 1, "mapping values are not allowed", "quote text"),
    "two documents": (JOB + "---\n" + JOB, 3, "another document", 'several jobs of one file stand under "jobs:"'),
    "a tag": ("model: !!python/name:os.system x\n", 1, "the tag", "remove the tag"),
    "an undefined alias": ("model: *x\n", 1, "undefined alias", "quote text that begins with *"),
    "an alias into itself": (
        "model: m\ndata: &a {path: d, preprocess: *a}\n",
        2,
        "contains it",
        "write the value out",
    ),
    "a key that is no text": ("? [a, b]\n: 1\n", 1, "a key must be plain text", "quote it"),
    "an empty file": ("", 0, "the file is empty", 'start with "model: FILE"'),
    "nothing but comments": ("# nothing\n", 0, "the file is empty", 'start with "model: FILE"'),
    "a list": ("- model: net.onnx\n", 1, "expected a mapping", '"key: value" lines'),
    "a merge key given twice": (
        "model: m.onnx\ndata:\n  path: d\n  <<: {samples: 3}\n  <<: {samples: 5}\n",
        5,
        'key "<<" is given twice, first on line 4',
        "keep one",
    ),
    "a key given twice": (JOB + "data: e\n", 3, 'key "data" is given twice, first on line 2', "keep one"),
    # unknown keys
    "an unknown key": (JOB + "calibraton: {}\n", 3, 'unknown key "calibraton"', 'did you mean "calibration"?'),
    "an unknown key of a section": (JOB + "calibration:\n  methd: kl\n", 4, '"methd"', 'did you mean "method"?'),
    "a key without its section": (JOB + "method: kl\n", 3, '"method"', 'did you mean "calibration.method"?'),
    "an unknown key of preprocess": (
        "model: m\ndata:\n  path: d\n  preprocess: {resise: 3}\n",
        4,
        'data.preprocess.resise: unknown key "resise"',
        'did you mean "resize"?',
    ),
    "an unknown key of evaluation data": (JOB + "evaluation: {data: {pth: d}}\n", 3, '"pth"', 'did you mean "path"?'),
    "an unknown key of the output": (JOB + "output: {zzz: 1}\n", 3, '"zzz"', "the keys here are dir, overwrite"),
    "an unknown key of defaults": (
        "defaults: {dta: d}\njobs: [{model: m}]\n",
        1,
        'defaults.dta: unknown key "dta"',
        'did you mean "data"?',
    ),
    "an unknown key of a job": (
        "defaults: {data: d}\njobs:\n- {model: a}\n- {model: b, outpt: {}}\n",
        4,
        'jobs[1].outpt: unknown key "outpt"',
        'did you mean "output"?',
    ),
    "an unknown key in a section of a job": (
        "jobs:\n- {model: a, data: d, quantization: {recip: fast}}\n",
        2,
        'jobs[0].quantization.recip: unknown key "recip"',
        'did you mean "recipe"?',
    ),
    # wrong types
    "text for a number": (JOB + "calibration: {threads: many}\n", 3, "expected a whole number", "correct the value"),
    "a fraction for a whole number": (JOB + "calibration: {threads: 1.5}\n", 3, "expected a whole number, got 1.5", ""),
    "a number in quotes": (JOB + "calibration: {percentile: '99'}\n", 3, "expected a number", "without quotes"),
    "a bool in quotes": (JOB + "quiet: 'true'\n", 3, "expected true or false", "without quotes"),
    "a number for text": (JOB + "output: {dir: 7}\n", 3, "expected text, got 7", "quote it"),
    "text for a list": (JOB + "evaluation: {gates: 'sqnr_db>=3'}\n", 3, "expected a list", "put it in brackets"),
    "a section without keys": (JOB + "calibration:\n", 3, "expected a mapping, got nothing", "remove the key"),
    "a mapping for jobs": ("jobs:\n  model: m\n  data: d\n", 2, "expected a list", 'begin each entry with "- "'),
    "underscores": ("model: m\ndata: {path: d, samples: 1_0}\n", 2, 'the number "1_0" has underscores', "without"),
    "a number of base 8": ("model: m\ndata: {path: d, samples: 010}\n", 2, 'reads "010" in base 8, as 8', "base 10"),
    "a number of base 60": ("model: m\ndata: {path: d, samples: 1:30}\n", 2, 'reads "1:30" in base 60, as 90', "quote"),
    "too many tokens": (
        "model: m\ndata: {path: d, preprocess: {text: {max_length: 100000000}}}\n",
        2,
        "text.max_length: expected a number of at most 1000000, got 100000000",
        "",
    ),
    # values out of range
    "too large": (JOB + "calibration: {percentile: 101}\n", 3, "a number of at most 100, got 101", ""),
    "too small": ("model: m\ndata: {path: d, samples: 0}\n", 2, "a number of at least 1, got 0", ""),
    "not finite": (JOB + "quantization: {ranges: {x: [.nan, 1]}}\n", 3, "expected a finite number, got nan", ""),
    "a range upside down": (JOB + "quantization: {ranges: {x: [2, 1]}}\n", 3, "[low, high] with low <= high", ""),
    "a size of three": (
        "model: m\ndata: {path: d, preprocess: {resize: [1, 2, 3]}}\n",
        2,
        "expected a number of pixels, or [height, width]",
        "",
    ),
    "a factor of zero": ("model: m\ndata: {path: d, preprocess: {scale: 0}}\n", 2, "a number other than 0", ""),
    "a name with a slash": (JOB + "name: a/b\n", 3, "a name without slashes", ""),
    "a placeholder misspelt": (
        JOB + "output:\n  dir: 'res/{nmae}'\n",
        4,
        '"{nmae}" is no placeholder',
        'mean "{name}"?',
    ),
    "a placeholder of nothing": (
        JOB + "output: {dir: 'res/{date}'}\n",
        3,
        '"{date}" is no placeholder',
        'write "{name}"',
    ),
    "a placeholder in a matrix": (
        JOB + "matrix:\n  output.dir: [a, 'b/{Name}']\n",
        4,
        'matrix.output.dir[1]: "{Name}"',
        'mean "{name}"?',
    ),
    "a name of dots": (JOB + "name: ..\noutput: {dir: 'res/{name}'}\n", 3, 'a name other than "." and ".."', ""),
    "a name of one dot": (JOB + "name: '.'\n", 3, 'a name other than "." and ".."', ""),
    "a name of dots in a matrix": (JOB + "matrix: {name: [a, '..']}\n", 3, 'a name other than "." and ".."', ""),
    "no timestamp": (JOB + 'name: !!timestamp "x"\n', 3, "the value is no timestamp", "remove the tag"),
    "no bool": (JOB + 'name: !!bool "x"\n', 3, "the value is no bool", "remove the tag"),
    "half a surrogate pair": ('model: "a\\ud800.onnx"\ndata: d\n', 1, "expected a path", ""),
    "a decimal number of thousands of digits": (
        "model: m\ndata: {path: d, samples: 1" + "0" * 6000 + "}\n",
        2,
        "the whole number is too large",
        "at most 18 digits",
    ),
    "a number of thousands of digits": (
        "model: m\ndata: {path: d, samples: 0x" + "f" * 6000 + "}\n",
        2,
        "the whole number is too large",
        "at most 18 digits",
    ),
    "a blank path": ("model: ' '\ndata: d\n", 1, "expected a path", ""),
    # choices
    "a choice misspelt": (JOB + "calibration: {method: klm}\n", 3, "expected one of 'auto'", 'did you mean "kl"?'),
    "a choice in capitals": (JOB + "quantization: {recipe: FAST}\n", 3, "expected one of", 'did you mean "fast"?'),
    "a choice with another dash": (
        JOB + "quantization: {target: x86_vnni}\n",
        3,
        "expected one of 'portable'",
        'did you mean "x86-vnni"?',
    ),
    # gates
    "a gate without a bound": (JOB + "evaluation: {gates: [top1.drop]}\n", 3, "not of the form", "top1.drop<=1.0"),
    "a gate with an unknown figure": (
        JOB + "evaluation:\n  gates:\n  - 'top1.dorp<=1'\n",
        5,
        'names an unknown figure "top1.dorp"',
        'did you mean "top1.drop"?',
    ),
    "a gate with a unit": (JOB + "evaluation: {gates: ['top1.drop<=1%']}\n", 3, 'compares with "1%"', "without a unit"),
    "a gate on what is not measured": (
        JOB + "evaluation:\n  latency: false\n  gates: ['latency.speedup>=1']\n",
        5,
        "measuring latency is switched off",
        "remove the gate",
    ),
    "a budget without a gate": (JOB + "quantization:\n  budget: 3\n", 4, "there is no gate", "leave --budget out"),
    # globs and variables
    "a glob that matches nothing": ("model: nets/*.onnx\ndata: d\n", 1, "no file matches", "correct the pattern"),
    "an undefined variable": ("model: m\ndata: ${NO_SUCH}/d\n", 2, "NO_SUCH is not defined", "export NO_SUCH=VALUE"),
    "a variable of no name": ("model: m\ndata: ${NO SUCH}\n", 2, '"${NO SUCH}" names no', "write ${NAME}"),
    "a variable without an end": ("model: m\ndata: ${HOME\n", 2, 'a "${" without its "}"', "write ${NAME}"),
    # batches
    "settings beside jobs": (
        "defaults: {data: d}\nquiet: true\njobs: [{model: m}]\n",
        2,
        "takes no settings beside them",
        "move quiet under defaults",
    ),
    "defaults without jobs": ("defaults: {data: d}\n", 1, "defaults without jobs", 'add a list "jobs:"'),
    "no jobs": ("defaults: {data: d}\njobs: []\n", 2, "expected at least 1 entry", ""),
    "an unknown key in a matrix": (JOB + "matrix: {calibration.methd: [kl]}\n", 3, '"methd"', 'did you mean "method"?'),
    "an unknown section in a matrix": (JOB + "matrix: {calibratn.method: [kl]}\n", 3, '"calibratn"', '"calibration"?'),
    "a bad value in a matrix": (
        JOB + "matrix:\n  calibration.method:\n  - kl\n  - klm\n",
        6,
        "matrix.calibration.method[1]",
        'did you mean "kl"?',
    ),
    "a matrix of millions": (
        JOB + f"matrix:\n  data.samples: {list(range(1, 2001))}\n  data.seed: {list(range(2000))}\n",
        3,
        "makes 4,000,000 jobs or more, at most 10,000 are taken",
        "fewer values",
    ),
    "one value for a matrix": (JOB + "matrix: {calibration.method: kl}\n", 3, "expected a list", "put it in brackets"),
    "an empty list in a matrix": (JOB + "matrix: {calibration.method: []}\n", 3, "at least 1 entry", ""),
    "two jobs with one directory": (
        "defaults: {data: d, output: {dir: out}}\njobs:\n- {model: a.onnx}\n- {model: b.onnx}\n",
        4,
        'jobs "a" and "b" would both write to out',
        'write "dir: results/{name}"',
    ),
    # what is missing
    "no model": ("data: d\n", 1, "model is missing", 'add "model: model.onnx"'),
    "no model in a job": ("defaults: {data: d}\njobs:\n- {name: a}\n", 3, "model is missing", 'add "model:'),
    "no data": ("model: m\n", 1, "data is missing", 'add "data: photos/train"'),
    "no path of the data": ("model: m\ndata: {samples: 3}\n", 1, "data.path is missing", 'add "path: photos/train"'),
}


def test_a_directory_that_is_a_link_to_itself_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("loop").symlink_to("loop")
    shutil.copy(SAMPLE / "model.onnx", "net.onnx")
    Path("job.yaml").write_text(f"model: net.onnx\ndata: {SAMPLE / 'calib'}\noutput: {{dir: loop}}\n")
    for arguments in (["--dry-run"], []):
        assert main(["run", "job.yaml", *arguments]) == 2
        assert "output: loop: is a link that leads to itself" in capsys.readouterr().err


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_yaml_is_refused_with_file_line_and_suggestion(tmp_path, monkeypatch, capsys, kind):
    text, line, what, do = BAD[kind]
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NO_SUCH", raising=False)
    (tmp_path / "bad.yaml").write_text(text)
    shutil.copy(SAMPLE / "model.onnx", "net.onnx")
    code = main(["run", "bad.yaml"])
    captured = capsys.readouterr()
    assert (code, captured.out) == (2, "")
    (message,) = captured.err.splitlines()
    place = rf"bad\.yaml:{line}:\d+: " if line else r"bad\.yaml: "
    assert re.match(rf"int8cal: (config|usage): {place}", message), message
    assert what in message
    assert do in message
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.yaml", "net.onnx"]


def test_a_file_that_is_not_there_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["run", "none.yaml"]) == 2
    assert "none.yaml: cannot be read" in capsys.readouterr().err
    assert main(["run", "."]) == 2


def test_a_model_that_is_not_there_is_an_error_of_the_model(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text(JOB)
    for arguments in (["run", "job.yaml", "--dry-run"], ["run", "job.yaml"]):
        assert main(arguments) == 3
        assert "net: model: net.onnx: does not exist" in capsys.readouterr().err
