"""Graphs of the onnx package's backend tests: quantized, or refused with a reason, and never anything else."""

import fnmatch
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

from backend_data import CONSTANTS, LAYERS, calibrate, calibrate_all, forms, published
from networks import PAGE, page, stored

# one or two of each kind of op: layers, what stands between them, control flow, other types
FEW = (
    "test_Conv2d_depthwise", "test_Conv3d_dilated", "test_Linear", "test_PReLU_2d", "test_and2d", "test_argmax_keepdims_example",
    "test_attention_4d_gqa", "test_averagepool_2d_pads", "test_batchnorm_example", "test_cast_FLOAT_to_FLOAT16", "test_celu",
    "test_clip", "test_concat_3d_axis_1", "test_constant_pad", "test_depthtospace_example", "test_einsum_batch_matmul",
    "test_expand_dim_changed", "test_gather_elements_1", "test_gelu_tanh_1", "test_gemm_all_attributes", "test_gru_defaults",
    "test_hardswish", "test_identity", "test_if", "test_layer_normalization_4d_axis_negative_1_epsilon", "test_loop11",
    "test_lstm_defaults", "test_matmul_1d_3d", "test_maxpool_2d_same_upper", "test_nonmaxsuppression_two_batches",
    "test_nesterov_momentum", "test_onehot_with_axis", "test_qlinearconv", "test_reduce_log_sum_default",
    "test_resize_upsample_sizes_nearest", "test_rms_normalization_3d_axis2_epsilon", "test_scan9_sum",
    "test_sequence_model6", "test_slice_neg", "test_softmax_axis_1", "test_split_equal_parts_2d", "test_spacetodepth",
    "test_tfidfvectorizer_tf_batch_onlybigrams_skip5", "test_top_k", "test_transpose_all_permutations_0", "test_unique_sorted_with_axis_3d",
    "test_upsample_nearest", "test_where_example",
)  # fmt: skip
REFUSED = {2, 3, 4, 5}  # usage, model, data, statistics
# What is said of none: a fault of the int8 model, or of how it was run, told as one of the float model.
WRONG = ("*QuantizeLinear*onnxruntime cannot load*", "*onnxruntime cannot load*QuantizeLinear*")
# codes of these change which element is taken, or cannot hold what one row in a thousand is
COARSE = ("*gridsample*", "*onehot*", "*hardmax*", "*softmax_large_number*", "*neginf_mask_poison*")
LEAST_DB = 15.0


def require_sound(key, outcome):
    assert outcome.exit_code == 0 or outcome.exit_code in REFUSED, f"{key}: {outcome.said}"
    assert not any(fnmatch.fnmatch(outcome.said, each) for each in WRONG), f"{key}: {outcome.said}"
    if outcome.sqnr_db is not None and not any(fnmatch.fnmatch(key, each) for each in COARSE):
        assert outcome.sqnr_db >= LEAST_DB, key


@pytest.fixture(scope="module")
def cases():
    return {f"{case.name}:{form}": each for case in published() if case.name in FEW for form, each in forms(case)}


@pytest.mark.slow
@pytest.mark.newest  # which cases there are, and what the runtime knows of them, changes with its versions
def test_a_few_of_each_kind_are_quantized_or_refused_with_a_reason(cases):
    assert len(cases) > len(FEW)
    outcomes = {key: calibrate(case) for key, case in cases.items()}
    for key, outcome in outcomes.items():
        require_sound(key, outcome)
    quantized = {key for key, outcome in outcomes.items() if outcome.exit_code == 0}
    assert {f"test_gru_defaults:{CONSTANTS}", f"test_relu:{LAYERS}"} & cases.keys() <= quantized
    assert len(quantized) > len(FEW) / 2


@pytest.mark.long
def test_so_are_all_of_them():
    every = [(f"{case.name}:{form}", each) for case in published() for form, each in forms(case)]
    for key, outcome in calibrate_all(every):
        require_sound(key, outcome)


def test_the_page_shows_the_results():
    assert PAGE.read_text(encoding="utf-8") == page(stored()), "run python tests/survey/networks.py page"
