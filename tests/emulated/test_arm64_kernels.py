"""Every kernel of int8 models on 64-bit ARM: the codes of x86 with VNNI, but for sums beside a tie.

A weight of -128, which int8cal's models never hold, gives something else on some ARM CPUs.
"""

import kernels
import pytest
from kernels import Difference

pytestmark = pytest.mark.emulated

PARTS = {
    "products": kernels.products(-127),
    "products with -128": kernels.products(-128),
    "elementwise": kernels.elementwise(),
    "sums": kernels.sums(),
    "floats": kernels.floats(),
}
# u8 codes become s8, and 0 is -128 then
SHIFTED = {name for name in PARTS["products"] if name.startswith("ConvInteger s8 x u8")}
# what is -128 times -128 twice does not fit into 16 bits
DEPTHWISE = {f"QLinearConv {x} x s8, depthwise" for x in ("u8", "s8")}


@pytest.fixture(scope="module")
def here(native, vnni):
    cases = {(part, name): case for part, found in PARTS.items() for name, case in found.items()}
    return cases, native.run(cases.values())


@pytest.fixture(scope="module")
def differences(here, arm):
    """By part and kernel, between an exact x86 and an ARM."""
    cases, results = here
    pairs = zip(results, arm.run(cases.values()), strict=True)
    found = dict(zip(cases, (Difference.of(*pair) for pair in pairs), strict=True))
    return {part: {name: found[part, name] for name in PARTS[part]} for part in PARTS}


def differing(found):
    return {name for name, difference in found.items() if difference.largest}


def test_products_of_weights_that_int8cal_writes_give_the_same_integers(differences, arm):
    assert differing(differences["products"]) == (set() if "asimddp" in arm.features else SHIFTED)


def test_a_weight_of_minus_128_wraps_without_a_dot_product_and_in_depthwise_layers_everywhere(differences, arm):
    found = differing(differences["products with -128"])
    assert found >= DEPTHWISE
    if "asimddp" in arm.features:
        assert found == DEPTHWISE
    else:
        assert {"MatMulInteger u8 x s8", "QGemm u8 x s8", "QLinearConv u8 x s8, 3x3"} <= found
        assert not any("u8 x u8" in name for name in found)


def test_all_that_makes_codes_of_codes_gives_the_same_ones(differences):
    assert len(differences["elementwise"]) > 30
    assert differing(differences["elementwise"]) == set()


def test_a_sum_beside_a_tie_may_be_rounded_to_the_other_code(differences):
    found = differences["sums"].values()
    assert max(difference.largest for difference in found) <= 1
    assert sum(difference.share for difference in found) / len(found) < 1e-4


def test_float_kernels_differ_in_their_last_bits(differences):
    assert max(difference.largest for difference in differences["floats"].values()) < 1e-3  # of one code
