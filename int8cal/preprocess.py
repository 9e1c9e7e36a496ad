"""How images, text and sound become a model's inputs: the settings, and sets of them that have a name."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from int8cal.setting import Form, Nonzero, NumberByName, Option, SideLengths

if TYPE_CHECKING:
    from collections.abc import Mapping

SetName = Literal["imagenet", "clip", "vit", "tf", "caffe", "yolo"]


@dataclass(frozen=True)
class TextPreprocess:
    """How text becomes tokens."""

    tokenizer: Annotated[
        str,
        Form("file"),
        Option(
            "A tokenizer.json of Hugging Face, or a directory that holds one.",
            flag="--tokenizer",
            group="Data",
            help="tokenizer.json (or its directory) that makes tokens of text.",
            metavar="FILE",
        ),
    ] = ""
    tokenizer_sha256: Annotated[
        str | None, Option("SHA-256 that the tokenizer's file must have; null for any. Tables hold it.")
    ] = None
    max_length: Annotated[
        int | None,
        Option(
            "Most tokens of a sample, with those that the tokenizer adds; what is longer is cut. null for the model's "
            "fixed length, or else what the tokenizer's file says, or else no limit.",
            flag="--max-length",
            group="Data",
            help="Cut text at N tokens (default: the model's fixed length, or what the tokenizer's file says).",
            ge=1,
            le=1_000_000,  # padding to more fills the memory
        ),
    ] = None
    padding: Annotated[
        Literal["longest", "max_length"] | None,
        Option(
            '"longest" leaves each sample its own length, because samples run one by one; "max_length" pads to '
            "`max_length`. null pads to the model's length where that is fixed, and not at all where it is not.",
            flag="--padding",
            group="Data",
            help="Pad text to --max-length, or leave samples their own length (default: as the model needs it).",
        ),
    ] = None
    pad_token: Annotated[
        str | None,
        Option(
            "Token that pads; null for that of the tokenizer's file, or else its [PAD] or <pad>.",
            flag="--pad-token",
            group="Data",
            help="Token that pads (default: that of the tokenizer's file, or else its [PAD] or <pad>).",
            metavar="TOKEN",
        ),
    ] = None
    inputs: Annotated[
        dict[str, str],
        Option(
            "The model's names for input_ids, attention_mask, token_type_ids and position_ids, where it calls them "
            "otherwise.",
            flag="--text-input",
            group="Data",
            help="What the model calls input_ids, attention_mask, token_type_ids or position_ids, such as "
            "input_ids=tokens. Repeatable.",
            metavar="NAME=INPUT",
        ),
    ] = field(default_factory=dict)


@dataclass(frozen=True)
class AudioPreprocess:
    """How a sound becomes a float tensor of frames in -1..1; applied in this order."""

    rate: Annotated[
        int | None,
        Option(
            "Frames per second that the model was trained with; a file of another rate is refused.",
            flag="--sample-rate",
            group="Data",
            help="Frames per second that the model takes; sounds of another rate are refused.",
            metavar="HZ",
            ge=1,
        ),
    ] = None
    resample: Annotated[
        bool,
        Option(
            "Bring files of another rate to `rate`.",
            flag="--resample",
            group="Data",
            help="Bring sounds of another rate to --sample-rate.",
        ),
    ] = False
    channels: Annotated[
        Literal["mean", "first"] | None,
        Option(
            "What becomes of several channels where the model takes one; null refuses such files.",
            flag="--audio-channels",
            group="Data",
            help="What becomes of sounds of several channels where the model takes one (default: they are refused).",
        ),
    ] = None
    scale: Annotated[
        Nonzero,
        Option(
            "Factor applied to the values -1..1; 32768 for those of 16-bit integers.",
            flag="--audio-scale",
            group="Data",
            help="Factor on sounds, whose values are -1..1 (default 1; 32768 for those of 16-bit integers).",
            metavar="X",
        ),
    ] = 1.0
    length: Annotated[
        int | None,
        Option(
            "Frames of a sample; null for the model's fixed length, or else whole files.",
            flag="--audio-length",
            group="Data",
            help="Cut sounds into samples of N frames (default: the model's fixed length, or else whole files).",
            ge=1,
        ),
    ] = None
    hop: Annotated[
        int | None,
        Option(
            "Frames from the beginning of a sample to that of the next in its file; null for `length`.",
            flag="--audio-hop",
            group="Data",
            help="Frames from the beginning of a sample to that of the next (default: its length).",
            ge=1,
        ),
    ] = None
    pad: Annotated[
        bool,
        Option(
            "Fill the end of a file that is no whole sample with zeros, instead of leaving it out.",
            flag="--audio-pad",
            group="Data",
            help="Fill the end of a sound that is no whole sample with zeros (default: leave it out).",
        ),
    ] = False
    input: Annotated[
        str | None,
        Option(
            "The model's input that takes the sound; null for the only one that nothing else feeds.",
            flag="--audio-input",
            group="Data",
            help="Input that takes the sound (default: the only one that nothing else feeds).",
            metavar="INPUT",
        ),
    ] = None


@dataclass(frozen=True)
class Preprocess:
    """How an image file becomes a float tensor, applied in this order; then text, sound and other inputs."""

    # A key, but no field: `with_set` puts what the set says in its place.
    set: ClassVar[
        Annotated[
            SetName | None,
            Option(
                "A set of the keys below by its name; keys beside it win. `preprocess: NAME` is short for it.",
                flag="--preprocess",
                help="Named set of how images become the input: {preprocess_sets}; --resize and the like win over it.",
                metavar="NAME",
                group="Data",
                first=True,
                api=(),
            ),
        ]
    ] = None
    resize: Annotated[
        SideLengths | None,
        Option(
            "Shorter side in pixels (int) or exact (height, width); null keeps the size.",
            flag="--resize",
            help="Shorter side of images in pixels, or exact HEIGHTxWIDTH.",
            metavar="SIZE",
            group="Data",
        ),
    ] = None
    letterbox: Annotated[
        int | None,
        Option(
            "Grey value 0..255 that fills `resize` where an image of another shape is fitted into it whole, centred "
            "(letterbox; 114 is common for detectors); null for no such filling.",
            flag="--letterbox",
            help="Fit whole images into --resize, and fill the rest with this grey (114 is common for detectors).",
            metavar="GREY",
            group="Data",
            ge=0,
            le=255,
        ),
    ] = None
    crop: Annotated[
        SideLengths | None,
        Option(
            "Centre crop side in pixels (int) or (height, width); null keeps the size.",
            flag="--crop",
            help="Cut from the centre: side in pixels, or HEIGHTxWIDTH.",
            metavar="SIZE",
            group="Data",
        ),
    ] = None
    color: Annotated[
        Literal["RGB", "BGR", "GRAY"] | None,
        Option(
            '"RGB", "BGR" or "GRAY"; null takes RGB for 3 channels and GRAY for 1.',
            flag="--color",
            help="Order of channels (default RGB for 3 channels, GRAY for 1).",
            group="Data",
        ),
    ] = None
    layout: Annotated[
        Literal["NCHW", "NHWC"] | None,
        Option(
            '"NCHW" or "NHWC"; null is told from the model\'s input shape.',
            flag="--layout",
            help="Where the channels are (default: told from the model's input shape).",
            group="Data",
        ),
    ] = None
    scale: Annotated[
        Nonzero,
        Option(
            "Factor applied to the 0..255 pixel values, such as 1/255.",
            flag="--scale",
            help="Factor on pixel values 0..255, such as 1/255 (default 1).",
            metavar="X",
            group="Data",
        ),
    ] = 1.0
    mean: Annotated[
        tuple[float, ...],
        Option(
            "Per channel, subtracted after `scale`; empty for none.",
            flag="--mean",
            help="Subtracted after --scale, one number or one per channel: 0.485,0.456,0.406.",
            metavar="X,...",
            group="Data",
        ),
    ] = ()
    std: Annotated[
        tuple[Nonzero, ...],
        Option(
            "Per channel, divided by after `mean`; empty for none.",
            flag="--std",
            help="Divided by after --mean, likewise.",
            metavar="X,...",
            group="Data",
        ),
    ] = ()
    text: Annotated[TextPreprocess | None, Option("How text becomes tokens; null where there is no text.")] = None
    audio: Annotated[AudioPreprocess | None, Option("How a sound becomes frames; null where there is no sound.")] = None
    fill: Annotated[
        NumberByName,
        Option(
            "Input -> number that all of it holds in every sample, for inputs that the data does not have: states "
            "that begin with 0, a sample rate.",
            flag="--fill",
            group="Data",
            help="Feed an input that the data does not have this number, such as state=0. Repeatable.",
            metavar="INPUT=NUMBER",
        ),
    ] = field(default_factory=dict)


@dataclass(frozen=True)
class NamedSet:
    """Preprocessing that has a name.

    Attributes:
        keys: What it sets; everything but the layout, which is the model's.
        what: Whose it is, and where it differs from the original.
        source: Where it is defined.
    """

    keys: "Mapping[str, Any]"
    what: str
    source: str


_IMAGENET = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
SETS: dict[SetName, NamedSet] = {
    "imagenet": NamedSet(
        {"resize": 256, "letterbox": None, "crop": 224, "color": "RGB", "scale": 1 / 255, **_IMAGENET},
        "torchvision's classifiers with their first weights (IMAGENET1K_V1), and many others trained on ImageNet; "
        "those for other sizes need their own resize and crop",
        "torchvision.transforms._presets.ImageClassification(crop_size=224)",
    ),
    "clip": NamedSet(
        {
            "resize": 224,
            "letterbox": None,
            "crop": 224,
            "color": "RGB",
            "scale": 1 / 255,
            "mean": [0.48145466, 0.4578275, 0.40821073],
            "std": [0.26862954, 0.26130258, 0.27577711],
        },
        "the image encoders of CLIP and OpenCLIP for 224 pixels; they are resized bicubically there, bilinearly here",
        "openai/CLIP, clip/clip.py, _transform",
    ),
    "vit": NamedSet(
        {
            "resize": [224, 224],
            "letterbox": None,
            "crop": None,
            "color": "RGB",
            "scale": 1 / 255,
            "mean": [0.5],
            "std": [0.5],
        },
        "Google's ViT as on the Hugging Face hub: resized to 224 x 224, whatever that does to the aspect, values -1..1",
        "google/vit-base-patch16-224, preprocessor_config.json",
    ),
    "tf": NamedSet(
        {"resize": 256, "letterbox": None, "crop": 224, "color": "RGB", "scale": 2 / 255, "mean": [1.0], "std": []},
        "values -1..1 in RGB, as Keras's MobileNet, Inception and Xception take them; Keras leaves the size to you, "
        "Inception and Xception want a crop of 299",
        'keras.applications.imagenet_utils.preprocess_input(mode="tf")',
    ),
    "caffe": NamedSet(
        {
            "resize": 256,
            "letterbox": None,
            "crop": 224,
            "color": "BGR",
            "scale": 1.0,
            "mean": [103.939, 116.779, 123.68],
            "std": [],
        },
        "values 0..255 in BGR less the mean of ImageNet, as Keras's VGG and ResNet (not V2) take them; Keras leaves "
        "the size to you",
        'keras.applications.imagenet_utils.preprocess_input(mode="caffe")',
    ),
    "yolo": NamedSet(
        {
            "resize": [640, 640],
            "letterbox": 114,
            "crop": None,
            "color": "RGB",
            "scale": 1 / 255,
            "mean": [],
            "std": [],
        },
        "values 0..1 in RGB for YOLOv5 and later by Ultralytics, fitted into 640 x 640 and filled up with grey "
        "(letterbox); models of another size need their own resize beside it",
        "ultralytics/ultralytics, data/augment.py, LetterBox",
    ),
}


def with_set(keys: "Mapping[str, Any]") -> dict[str, Any]:
    """Put what a named set says in the place of its name.

    Args:
        keys: Those of the YAML; "set" may be one of them, and all others win over what it says.
    """
    name: SetName | None = keys.get("set")
    said = {} if name is None else SETS[name].keys
    return {**said, **{key: value for key, value in keys.items() if key != "set"}}
