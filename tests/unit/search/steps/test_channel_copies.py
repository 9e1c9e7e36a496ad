import numpy as np

from int8cal.quantization.build import build_model
from int8cal.quantization.corrections.channel_copies import ChannelCopies
from int8cal.search.candidate import plain_candidate
from int8cal.search.search import first_state, search
from int8cal.search.steps import channel_copies, equalization

TEXT = """g (float[N,128] x) => (float[N,256] y) {
    n = LayerNormalization <axis = -1> (x, S, T) m = MatMul (n, W) y = Add (m, B)
}"""


def weights(outlier, outputs=256):
    random = np.random.default_rng(2)
    scale = np.ones(128, np.float32)
    scale[[3, 20]] = outlier
    return {
        "S": scale,
        "T": np.zeros(128, np.float32),
        "W": random.normal(size=(128, outputs)).astype(np.float32),
        "B": random.normal(size=outputs).astype(np.float32),
    }


def searched(inputs):
    steps = (equalization.propose, channel_copies.propose)
    return search(first_state(inputs, plain_candidate(inputs)), steps, inputs)


def test_an_outlying_channel_is_read_several_times(search_inputs):
    inputs = search_inputs(TEXT, counted=256, **weights(6.0))
    state = searched(inputs)
    (copies,) = ChannelCopies.of(state.table).values.values()
    assert {3, 20} <= set(copies)
    assert state.results[-1].kept
    assert state.results[-1].after_db > state.results[-1].before_db
    assert "copies of" in state.notes[-1]
    rebuilt = build_model(inputs.prepared, state.plan, state.table)
    assert rebuilt.model.SerializeToString() == state.built.model.SerializeToString()


def test_a_layer_of_few_outputs_reads_no_copies(search_inputs):
    """Making them would take longer than a third of its product."""
    state = searched(search_inputs(TEXT.replace("256", "128"), **weights(6.0, 128)))
    assert not ChannelCopies.of(state.table)


def test_channels_alike_are_read_once(search_inputs):
    state = searched(search_inputs(TEXT, **weights(1.0)))
    assert not ChannelCopies.of(state.table)


def test_copies_keep_within_their_share():
    sizes = np.concatenate([np.ones(30), [9.0, 3.0]])
    assert channel_copies.halvings_within(sizes, 0).tolist() == [0] * 32
    assert channel_copies.halvings_within(sizes, 2).tolist() == [0] * 32  # 9 to 3 alone would take three
    assert channel_copies.halvings_within(sizes, 3)[30:].tolist() == [2, 0]
    assert channel_copies.halvings_within(sizes, 18)[30:].tolist() == [4, 2]
    assert not channel_copies.halvings_within(np.zeros(4), 10).any()


def test_channels_seen_with_few_values_are_not_copied(search_inputs):
    """What is largest among few values is so by chance, and the other channels would be clipped."""
    values = weights(1.0)
    values["S"] = np.linspace(0.5, 1.5, 128, dtype=np.float32)
    assert not ChannelCopies.of(searched(search_inputs(TEXT, counted=8, **values)).table)
