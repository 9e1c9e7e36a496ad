"""Pretrained models on a CPU without VNNI: safe weights give the same integers and answers there, s8 weights do not.

INT8CAL_EMULATED=long takes all of them, s7 too, and more images (minutes); without it, two models stand for the rest.
"""

import pytest
from harness import has_integer_products
from int8_variants import LONG, SAFE, variants

pytestmark = [pytest.mark.emulated, pytest.mark.zoo]

NAMES = ("resnet20", "vit", "kws_dscnn") + (
    ("mbv2", "mnist_op8", "resnet20_imbalanced", "silero_vad_16k_flat", "ultraface_rfb320") if LONG else ()
)
SLOW = {"vit"}
# Softmax alone has other float kernels on AVX2 than on AVX-512 (and Conv with 16 channels or more: none is left in float)
FLOAT_DIFFERS = {"vit"}
# with s8 weights half of its channels can saturate, and with these sounds none does
SELDOM_SATURATES = {"kws_dscnn"}


def marked(name, *more):
    """A parameter with its mark; nearly all of the emulated time goes into transformers."""
    return pytest.param((name, *more) if more else name, marks=[pytest.mark.slow] if name in SLOW else [])


@pytest.fixture(scope="module", params=[marked(name) for name in NAMES])
def runs(request, zoo_models, native, haswell):
    return request.param, variants(*zoo_models(request.param), native, haswell)


@pytest.mark.parametrize("kind", SAFE)
def test_safe_weights_give_the_same_integers(runs, kind):
    name, run = runs[0], runs[1][kind]
    assert {"QLinearConv", "QGemm", "MatMulIntegerToFloat"} & set(run.kernels)
    changed = run.changed()
    if name in FLOAT_DIFFERS:
        assert "Softmax" in run.kernels
        # A value beside a tie is rounded the other way, and the layers behind carry that on. One code in some tens of thousands
        # ends more than 2 steps away; the answers differ by less. A remainder's steps are 254ths of the others'.
        whole = [codes for codes in changed if not codes.endswith("_remainder_quantized")]
        assert all(run.share_beyond(codes, 2) <= 1e-3 for codes in whole), {codes: changed[codes] for codes in whole}
    else:
        assert changed == {}


@pytest.mark.parametrize("kind", SAFE)
def test_safe_weights_give_the_same_answers(runs, kind):
    assert runs[1][kind].answers_alike()


def test_s8_weights_give_others(runs, vnni):
    if runs[0] in SELDOM_SATURATES:
        pytest.skip("these weights and these sounds do not meet badly")
    run = runs[1]["s8"]
    assert len(run.changed()) > len(run.codes) / 2
    assert max(run.output_steps().values()) > 1


# silero: a state beside a batch of frames, which OpenVINO reads otherwise
@pytest.fixture(
    scope="module",
    params=[marked(name, isa) for name in NAMES for isa in ("AVX2", "AVX512_CORE") if not name.startswith("silero")],
    ids="-".join,
)
def onednn_runs(request, zoo_models, onednn):
    """The same int8 models in OpenVINO, with all that this CPU has and with an older instruction set."""
    name, isa = request.param
    return name, isa, variants(*zoo_models(name), onednn(""), onednn(isa), codes=False)


@pytest.mark.parametrize("kind", SAFE)
def test_onednn_gives_the_same_answers_with_safe_weights(onednn_runs, vnni, kind):
    runs = onednn_runs[2]
    assert has_integer_products(runs[kind].kernels)
    assert runs[kind].answers_alike()


def test_onednn_gives_others_with_s8_weights(onednn_runs, vnni):
    name, _, runs = onednn_runs
    if name in SELDOM_SATURATES:
        pytest.skip("these weights and these sounds do not meet badly")
    assert max(runs["s8"].output_steps().values()) > 1
