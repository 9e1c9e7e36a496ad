"""The settings of a job that are about its data; declared as those of `int8cal.job` are, which imports them."""

from dataclasses import dataclass
from typing import Annotated

from int8cal.preprocess import Preprocess
from int8cal.setting import DataSource, LabelSource, Option


@dataclass(frozen=True)
class DataSettings:
    """Where samples come from."""

    path: Annotated[
        DataSource,
        Option(
            'Directory, file, glob, "datasets:NAME[/config][:split]" or "package.module:function".',
            flag="--data",
            group="Data",
            first=True,
            help="Samples: images, sound, text or arrays as a directory, file or glob; datasets:NAME; or "
            "package.module:function.",
            metavar="PATH",
            api=(),
        ),
    ]
    samples: Annotated[
        int | None,
        Option(
            "At most this many samples; null for all.",
            flag="--samples",
            group="Data",
            first=True,
            help="Use at most N samples.",
            ge=1,
            api=("calibrate", "evaluate"),
        ),
    ] = None
    columns: Annotated[
        tuple[str, ...],
        Option(
            "Columns that are read of .csv, .tsv, .jsonl and datasets, two of them for pairs of texts, or those of the "
            "numbers of an input, in their order. Empty for the only one that fits, or usual names such as text, "
            "sentence, image, audio; a column that is called like an input feeds it.",
            flag="--column",
            group="Data",
            help="Read this column of .csv, .tsv, .jsonl or a dataset; twice for pairs of texts, or once for each "
            "number of a row.",
            metavar="NAME",
            api=("calibrate", "evaluate"),
        ),
    ] = ()
    preprocess: Annotated[
        Preprocess | None,
        Option(
            "What is done to images, text and sound, or the name of a set for images; null when none is declared (the "
            "model then gets pixel values 0..255).",
            api=("calibrate", "evaluate"),
            recorded="always",
        ),
    ] = None
    labels: Annotated[
        LabelSource | None,
        Option(
            '"folders", path of a CSV or a list, "column:NAME", "none", or null (told by the data: a column label or '
            "labels, labels.csv if present, else class folders that can be the model's classes).",
            api=(),
        ),
    ] = None
    skip_bad: Annotated[
        bool,
        Option(
            "Count and skip unreadable files instead of stopping at the first.",
            flag="--skip-bad",
            group="Data",
            help="Count and skip unreadable files, not stop.",
            api=("calibrate", "evaluate"),
        ),
    ] = False
    seed: Annotated[
        int,
        Option(
            "Chooses which samples are taken when `samples` is smaller than the set.",
            flag="--seed",
            group="Data",
            help="Seed that chooses the samples (default {default}).",
            ge=0,
            api=("calibrate", "evaluate"),
        ),
    ] = 0
