import pytest
from onnx import helper

from int8cal.errors import UsageError
from int8cal.graph.select import Selection

NODES = [
    helper.make_node(op, ["x"], [written], name=name)
    for name, op, written in [
        ("/stem/conv", "Conv", "getitem_3"),
        ("/head/fc[0]", "Gemm", "logits"),
        ("/head/out", "Softmax", "scores"),
    ]
]


@pytest.mark.parametrize(
    ("include", "exclude", "expected"),
    [
        ((), (), {"/stem/conv", "/head/fc[0]", "/head/out"}),
        (("/head/*",), (), {"/head/fc[0]", "/head/out"}),
        (("/head/*",), ("op:Soft*",), {"/head/fc[0]"}),
        (("op:Conv", "op:Gemm"), ("/stem/conv",), {"/head/fc[0]"}),
        (("/head/fc[0]",), (), {"/head/fc[0]"}),  # a name is itself, even where brackets would be a pattern
        ((), ("*",), set()),
    ],
)
def test_exclude_wins_over_include(include, exclude, expected):
    assert Selection(include, exclude).resolve(NODES) == expected


@pytest.mark.parametrize(
    ("include", "exclude", "option", "hint"),
    [
        (("/stem/con",), (), "--include", "did you mean '/stem/conv'?"),
        ((), ("op:Softmx",), "--exclude", "did you mean 'op:Softmax'?"),
        ((), ("/HEAD/*",), "--exclude", ""),
        ((), ("Conv",), "--exclude", "did you mean 'op:Conv'?"),
        ((), ("gemm",), "--exclude", "did you mean 'op:Gemm'?"),
        ((), ("op:softmax",), "--exclude", "did you mean 'op:Softmax'?"),
        ((), ("getitem_3",), "--exclude", "did you mean '/stem/conv'?"),  # a report names layers by their tensors
        (("zzz",), (), "--include", "int8cal inspect"),
    ],
)
def test_a_pattern_that_matches_nothing_is_an_error_with_the_nearest_name(include, exclude, option, hint):
    with pytest.raises(UsageError) as caught:
        Selection(include, exclude).resolve(NODES)
    assert caught.value.where == option
    assert hint in caught.value.do
    assert caught.value.exit_code == 2
