"""Which families real models belong to: those, and no others."""

import pytest

from int8cal.graph.families import find_families
from int8cal.graph.prepare import prepare
from int8cal.runtime.sessions import simplify

pytestmark = pytest.mark.zoo

FAMILIES = {
    "kws_dscnn": {"depthwise convolutions"},
    "mbv2": {"depthwise convolutions"},
    "mnist_op8": set(),
    "resnet20": set(),
    "silero_vad_16k_flat": {"recurrent cells"},
    "text_encoder3": {
        "attention masks",
        "normalization in front of products",
        "embedding tables",
        "embedding output",
    },
    "ultraface_rfb320": {"detection head", "depthwise convolutions"},
    "vit": {"normalization in front of products"},
}


@pytest.mark.parametrize("name", FAMILIES)
def test_a_real_model_is_known_by_its_graph(zoo, name):
    found = find_families(prepare(zoo.model_path(name), simplify).model)
    assert {family.rule.name for family in found} == FAMILIES[name]
