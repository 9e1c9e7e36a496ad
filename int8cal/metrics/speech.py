"""Speech: word error rate, by jiwer.

Truth: a .txt file for each sample with what was said; and vocabulary.txt in the folder of the truth, one token a
line, the blank of CTC first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from int8cal.errors import DataError
from int8cal.metrics.outputs import Outputs, needs
from int8cal.metrics.truth import folder_of, truth_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from int8cal.numerics import Array

_SPACES = ("|", "▁", "<space>")  # how vocabularies write the space between words


@needs("jiwer", higher_is_better=False)
def word_error_rate(outputs: Outputs, labels: object, origins: list[str]) -> float:  # noqa: ARG001 - every metric gets labels
    """Substituted, left out and added words of all samples, over the words that were said; lower is better.

    Args:
        outputs: The first has token logits at each position, (T, tokens), of which the largest are read as CTC does:
            repetitions are one, blanks are none.
        labels: Not used.
        origins: The samples; their truth lies beside them.
    """
    import jiwer

    tokens = _vocabulary(origins[0])
    logits = next(iter(outputs.values()))
    heard = [read_ctc(np.asarray(each), tokens) for each in logits]
    said = [" ".join(truth_of(origin, ".txt").split()) for origin in origins]
    return float(jiwer.wer(said, heard))


def read_ctc(logits: Array, tokens: Sequence[str]) -> str:
    """Read token logits, (T, tokens), greedily: the largest of each position, repetitions once, without blanks."""
    best = logits.reshape(-1, logits.shape[-1]).argmax(axis=1)
    changed = np.concatenate(([True], best[1:] != best[:-1]))
    text = "".join(tokens[index] for index in best[changed & (best != 0)])
    for space in _SPACES:
        text = text.replace(space, " ")
    return " ".join(text.split())


def _vocabulary(origin: str) -> list[str]:
    file = folder_of(origin) / "vocabulary.txt"
    try:
        return file.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise DataError("cannot be read", where=str(file), do="write one token a line, the blank first") from error
