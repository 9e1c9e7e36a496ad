"""Text as feeds: columns, cutting, padding, inputs, labels."""

import json
import pickle

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from int8cal.errors import ConfigError, DataError
from int8cal.evaluation.feeding import feeding_findings
from int8cal.graph.signature import signature_of
from int8cal.preprocess import Preprocess, TextPreprocess

tokenizers = pytest.importorskip("tokenizers")

WORDS = {word: index for index, word in enumerate(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b", "c", "d"))}


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A directory with tokenizer.json: words, with [CLS] in front and [SEP] behind each text."""
    monkeypatch.chdir(tmp_path)
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(WORDS, unk_token="[UNK]"))  # noqa: S106 - a token of text
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    made.save("tokenizer.json")
    return tmp_path


@pytest.fixture
def encoder(signature):
    """Inputs of a text encoder, int64 (N, L)."""

    def make(length="L", dtype=np.int64, names=("input_ids", "attention_mask", "token_type_ids")):
        return signature(**dict.fromkeys(names, (("N", length), dtype)))

    return make


def text(**settings):
    return Preprocess(text=TextPreprocess("tokenizer.json", **settings))


def tokens(opened):
    return [sample.feed["input_ids"].tolist()[0] for sample in opened]


def test_samples_keep_their_own_length_where_the_model_takes_any(place, encoder, feeds):
    (place / "t.txt").write_text("a b c\n\nd nowhere\n")
    samples = list(feeds("t.txt", encoder(), preprocess=text()))
    assert [sample.origin for sample in samples] == ["t.txt, line 1", "t.txt, line 3"]
    assert tokens(samples) == [[2, 4, 5, 6, 3], [2, 7, 1, 3]]
    assert all(value.dtype == np.int64 and value.shape[0] == 1 for each in samples for value in each.feed.values())


@pytest.mark.parametrize("max_length", [None, 4, 6])
def test_the_models_fixed_length_wins(place, encoder, feeds, max_length):
    (place / "t.txt").write_text("a\na b c d a b c d\n")
    short, long = feeds("t.txt", encoder(6), preprocess=text(max_length=max_length))
    assert short.feed["input_ids"].tolist() == [[2, 4, 3, 0, 0, 0]]
    assert short.feed["attention_mask"].tolist() == [[1, 1, 1, 0, 0, 0]]
    kept = (max_length or 6) - 2
    assert long.feed["input_ids"].tolist() == [[2, *(4 + n % 4 for n in range(kept)), 3, *[0] * (4 - kept)]]


def test_feeds_are_those_of_the_library_with_its_own_padding(place, encoder, feeds):
    own = tokenizers.Tokenizer.from_file("tokenizer.json")
    own.enable_padding(length=7, direction="left", pad_id=5)
    own.save("tokenizer.json")
    own.enable_truncation(7)
    (place / "p.csv").write_text("premise,hypothesis\na b,c\na b c d,b c d a\n")
    names = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
    samples = feeds("p.csv", encoder(7, np.int32, names), preprocess=text())
    for sample, pair in zip(samples, (("a b", "c"), ("a b c d", "b c d a")), strict=True):
        expected = own.encode(*pair)
        assert sample.feed["input_ids"].tolist() == [expected.ids]
        assert sample.feed["attention_mask"].tolist() == [expected.attention_mask]
        assert sample.feed["token_type_ids"].tolist() == [expected.type_ids]
        assert sample.feed["position_ids"].dtype == np.int32
        kept = sample.feed["position_ids"][0][np.array(expected.attention_mask) == 1]
        assert kept.tolist() == list(range(len(kept)))


@pytest.mark.parametrize(("lines", "told"), [("nothing here\nis known\n", True), ("nothing here\nis a\n", False)])
@pytest.mark.parametrize("length", ["L", 6])
def test_texts_without_a_known_token_are_told(place, feeds, lines, told, length):
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["N", length])
    model = helper.make_model(
        helper.make_graph(
            [helper.make_node("Identity", ["input_ids"], ["y"])], "g", [ids], [onnx.ValueInfoProto(name="y")]
        )
    )
    (place / "t.txt").write_text(lines)
    found = feeding_findings(model, feeds("t.txt", signature_of(model), preprocess=text()))
    said = (
        "every token of 2 texts of t.txt is unknown (id 1); is tokenizer.json this model's tokenizer? Give --tokenizer "
    )
    assert [str(each) for each in found] == [f"{said}the model's own"] * told


def test_a_tokenizer_that_cuts_by_itself_does(place, encoder, feeds):
    own = tokenizers.Tokenizer.from_file("tokenizer.json")
    own.enable_truncation(4)
    own.save("tokenizer.json")
    (place / "t.txt").write_text("a b c d\n")
    assert tokens(feeds("t.txt", encoder(), preprocess=text())) == [[2, 4, 5, 3]]
    assert tokens(feeds("t.txt", encoder(), preprocess=text(max_length=5))) == [[2, 4, 5, 6, 3]]


def test_padding_to_a_declared_length(place, encoder, feeds):
    (place / "t.txt").write_text("a\n")
    assert tokens(feeds("t.txt", encoder(), preprocess=text(max_length=5, padding="max_length"))) == [[2, 4, 3, 0, 0]]
    assert tokens(feeds("t.txt", encoder(), preprocess=text(max_length=5, padding="longest"))) == [[2, 4, 3]]
    padded = text(max_length=4, padding="max_length", pad_token="d")  # noqa: S106 - likewise
    assert tokens(feeds("t.txt", encoder(), preprocess=padded)) == [[2, 4, 3, 7]]


def test_inputs_of_other_names_are_declared(place, encoder, feeds):
    (place / "t.txt").write_text("a\n")
    model = encoder(names=("words", "attention_mask"))
    with pytest.raises(
        DataError, match=r"no input that is called input_ids; name the inputs .* --text-input input_ids=tokens"
    ):
        feeds("t.txt", model, preprocess=text())
    (sample,) = feeds("t.txt", model, preprocess=text(inputs={"input_ids": "words"}))
    assert sample.feed["words"].tolist() == [[2, 4, 3]]


def test_the_directory_of_the_tokenizer_will_do(place, encoder, feeds):
    (place / "t.txt").write_text("a\n")
    assert tokens(feeds("t.txt", encoder(), preprocess=Preprocess(text=TextPreprocess(".")))) == [[2, 4, 3]]


@pytest.mark.parametrize(
    ("header", "columns", "expected"),
    [
        ("text", (), [[2, 4, 3]]),
        ("id,text", (), [[2, 5, 3]]),
        ("sentence1,sentence2", (), [[2, 4, 3, 5, 3]]),
        ("x,y", ("y",), [[2, 5, 3]]),
        ("x,y", ("y", "x"), [[2, 5, 3, 4, 3]]),
    ],
)
def test_which_columns_are_read(place, encoder, feeds, header, columns, expected):
    (place / "t.csv").write_text(f"{header}\n{'a' if ',' not in header else 'a,b'}\n")
    assert tokens(feeds("t.csv", encoder(), preprocess=text(), columns=columns)) == expected


@pytest.mark.parametrize(
    ("content", "labels", "expected"),
    [
        ("text,label\na,2\nb,0\n", None, [2, 0]),
        ("text,label\na,no\nb,yes\n", None, [0, 1]),
        ("text,label\na,0.5\nb,1\n", None, [None, None]),
        ("text,label\na,\nb,1\n", None, [None, None]),
        ("text,label,kind\na,1,x\nb,1,a\n", "column:kind", [1, 0]),
    ],
)
def test_labels_of_a_column(place, encoder, feeds, content, labels, expected):
    (place / "t.csv").write_text(content)
    opened = feeds("t.csv", encoder(), preprocess=text(), labels=labels)
    assert [sample.label for sample in opened] == expected
    assert opened.labelled == (None not in expected)


def test_numbers_of_a_jsonl_feed_inputs_of_their_name(place, signature, feeds):
    (place / "t.jsonl").write_text('{"text": "a b", "x": [1, 2.5]}\n{"text": "c", "x": [3, 4]}\n')
    model = signature(input_ids=(("N", "L"), np.int64), x=("N", 2))
    samples = list(feeds("t.jsonl", model, preprocess=text()))
    assert [sample.feed["x"].tolist() for sample in samples] == [[[1, 2.5]], [[3, 4]]]
    assert tokens(samples) == [[2, 4, 5, 3], [2, 6, 3]]


def test_cells_of_numbers_feed_inputs_of_their_name_beside_text(place, signature, feeds):
    (place / "t.csv").write_text("x,note\n7,a b\n2.5,c\n")
    model = signature(input_ids=(("N", "L"), np.int64), x=("N", 1))
    samples = list(feeds("t.csv", model, preprocess=text()))
    assert [sample.feed["x"].tolist() for sample in samples] == [[[7]], [[2.5]]]
    assert tokens(samples) == [[2, 4, 5, 3], [2, 6, 3]]


@pytest.mark.parametrize("numbers", ["7\n3\n", "a,b\n7,3\n"])
def test_texts_that_spell_numbers_are_texts_where_there_is_a_tokenizer(place, encoder, feeds, numbers):
    (place / "t.csv").write_text(numbers)
    columns = ("a",) if "," in numbers else ()
    assert tokens(feeds("t.csv", encoder(), preprocess=text(), columns=columns)) == [[2, 1, 3]]


def test_the_choice_of_samples_and_passes_are_the_same_every_time(place, encoder, feeds):
    (place / "t.txt").write_text("".join(f"{'abcd'[n % 4]} " * (n + 1) + "\n" for n in range(20)))
    opened = feeds("t.txt", encoder(), preprocess=text(), samples=5, seed=3)
    first = [sample.origin for sample in opened]
    assert len(first) == 5
    assert first == [sample.origin for sample in opened]
    assert [sample.origin for sample in opened.spread(2)] == [first[0], first[-1]]


@pytest.mark.parametrize(
    ("settings", "error", "what"),
    [
        ({"max_length": 9}, ConfigError, "max_length: is 9, the model takes 6 tokens"),
        ({"padding": "longest"}, ConfigError, 'padding: is "longest", the model takes samples of 6 tokens only'),
        ({"pad_token": "<none>"}, ConfigError, 'no token "<none>"'),
        ({"tokenizer_sha256": "0" * 64}, DataError, "is another tokenizer than the one"),
        ({"inputs": {"ids": "input_ids"}}, ConfigError, '"ids" is none of input_ids, attention_mask'),
        ({"inputs": {"input_ids": "x"}}, ConfigError, 'the model has no input "x"; the inputs are "input_ids"'),
    ],
)
def test_contradictions_are_told_before_any_sample(place, encoder, feeds, settings, error, what):
    (place / "t.txt").write_text("a\n")
    with pytest.raises(error) as caught:
        feeds("t.txt", encoder(6), preprocess=text(**settings))
    assert what in str(caught.value)


@pytest.mark.parametrize(
    ("content", "settings", "what"),
    [
        ("x,y\na,b\n", {}, 'several columns hold text: "x", "y"; say which: --column x'),
        ("x,y\na,b\n", {"columns": ("z",)}, 'has no column "z"; the columns are "x", "y"'),
        ("text,y\na,b\n , c\n", {}, 't.csv, line 3: cannot be read: column "text" is empty'),
        ("text\na\n", {"labels": "column:kind"}, 'has no column "kind"'),
        ("text,kind\na,0.5\n", {"labels": "column:kind"}, "t.csv, line 2: label '0.5' is no class"),
        (
            f"text,kind\na,1\nb,{'1' * 5000}\n",
            {"labels": "column:kind"},
            f"t.csv, line 3: label '{'1' * 59} is no class",
        ),
        (
            "text\na\n",
            {"preprocess": Preprocess(resize=8)},
            "preprocessing of image is declared; .csv files are none; leave out --preprocess, --resize and the like",
        ),
        ("text\na\n", {"preprocess": None}, "holds text, and no tokenizer is declared; give --tokenizer"),
    ],
)
def test_mistakes_are_named(place, encoder, feeds, content, settings, what):
    (place / "t.csv").write_text(content)
    with pytest.raises(DataError) as caught:
        feeds("t.csv", encoder(), **{"preprocess": text(), **settings})
    assert what in str(caught.value)


def test_an_input_that_nothing_feeds_is_named_and_can_be_filled(place, signature, feeds):
    (place / "t.txt").write_text("a\n")
    model = signature(input_ids=(("N", "L"), np.int64), step=((1,), np.int64))
    with pytest.raises(DataError, match='feeds input "step"; let it hold one number, as in --fill step=0'):
        feeds("t.txt", model, preprocess=text())
    filled = Preprocess(text=TextPreprocess("tokenizer.json"), fill={"step": 7})
    (sample,) = feeds("t.txt", model, preprocess=filled)
    assert sample.feed["step"].tolist() == [7]


def test_files_of_text_can_be_sent_to_other_processes(place, encoder, feeds):
    (place / "t.csv").write_text("text,label\na,0\nb c,1\n")
    files = feeds("t.csv", encoder(), preprocess=text()).files
    sent = pickle.loads(pickle.dumps(files.only([1])))  # noqa: S301 - what was just written
    assert [(each.origin, each.feed["input_ids"].tolist(), each.label) for each in sent.read([])] == [
        ("t.csv, line 3", [[2, 5, 6, 3]], 1)
    ]


def test_a_file_that_is_no_tokenizer(place, encoder, feeds):
    (place / "t.txt").write_text("a\n")
    (place / "tokenizer.json").write_text("{}")
    with pytest.raises(DataError, match=r"tokenizer.json: is no tokenizer.json") as caught:
        feeds("t.txt", encoder(), preprocess=text())
    assert "save_pretrained(...) writes one" in caught.value.do  # who gives a vocab.txt has none yet


def test_texts_that_are_cut_say_so(place, encoder, feeds):
    (place / "t.txt").write_text("a\na b c d\n")
    assert [each.fit for each in feeds("t.txt", encoder(), preprocess=text(max_length=4))] == [None, "cut"]
    assert [each.fit for each in feeds("t.txt", encoder(6), preprocess=text())] == [None, None]
    assert [each.fit for each in feeds("t.txt", encoder(5), preprocess=text())] == [None, "cut"]


def test_a_tokenizer_that_fails_on_a_text_is_told_with_the_sample(place, signature, feeds):
    document = json.loads((place / "tokenizer.json").read_text())
    template = {"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
    document["post_processor"] = {
        "type": "TemplateProcessing",
        "single": template,
        "pair": template,
        "special_tokens": {},
    }
    (place / "tokenizer.json").write_text(json.dumps(document))
    (place / "t.txt").write_text("a\n")
    model = signature(input_ids=(("N", "L"), np.int64))
    with pytest.raises(DataError, match=r"t\.txt, line 1: the tokenizer fails on it: "):
        list(feeds("t.txt", model, preprocess=text()))


def test_a_token_that_the_input_does_not_hold_is_told_with_the_sample(place, signature, feeds):
    document = json.loads((place / "tokenizer.json").read_text())
    document["model"]["vocab"]["a"] = 300
    (place / "tokenizer.json").write_text(json.dumps(document))
    (place / "t.txt").write_text("b\na\n")
    model = signature(input_ids=(("N", "L"), np.int8))
    with pytest.raises(DataError, match=r"t\.txt, line 2: the tokenizer fails on it: .*300 out of bounds for int8"):
        list(feeds("t.txt", model, preprocess=text()))
