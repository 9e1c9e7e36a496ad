"""How `int8cal.job` declares a setting: what its value must look like, and what is said of it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

Group = Literal["Data", "Accuracy", "Where it runs", "Output"]


@dataclass(frozen=True)
class Form:
    """What a value must look like beyond its type; `config.schema` has a check for each name."""

    name: Literal[
        "file",
        "directory",
        "source",
        "labels",
        "name",
        "gate",
        "nonzero",
        "size",
        "range",
        "metric",
        "nodes",
        "values",
        "shard",
    ]


File = Annotated[Path, Form("file")]
Directory = Annotated[Path, Form("directory")]
DataSource = Annotated[str, Form("source")]  # a path, package.module:function, or datasets:NAME
LabelSource = Annotated[str, Form("labels")]  # a path, "folders", "column:NAME", or "none"
Name = Annotated[str, Form("name")]
GateText = Annotated[str, Form("gate")]
MetricName = Annotated[str, Form("metric")]  # package.module:function, or the name of an installed one
Nonzero = Annotated[float, Form("nonzero")]
SideLengths = Annotated[int | tuple[int, int], Form("size")]
Range = Annotated[tuple[float, float], Form("range")]
NumberByName = Annotated[dict[str, float], Form("values")]  # name -> number
ShardName = Annotated[str, Form("shard")]  # "K/N"
Nodes = Annotated[bool | tuple[str, ...], Form("nodes")]  # patterns, or true for all


@dataclass(frozen=True)
class Option:
    """What is said of a setting beside its name, type and default.

    Attributes:
        about: What it means, in the YAML's words.
        flag: How the command line spells it, such as "-o --output"; empty for not at all. A flag of a setting that is
            true by default switches it off. The flag of a section sets the section's path.
        help: What --help says of the flag; empty for `about`. {default} and the texts of `cli.options` are filled in.
        metavar: What --help calls the value; empty for N of whole numbers, and for choices.
        group: Under which heading --help lists the flag.
        first: Whether the flag is among the dozen that people need first: --help lists these, --help-all every flag.
        gt, ge, le: Limits of a number: above, at least, at most.
        api: Functions of the Python API that take it.
        keyword: What it is called there; empty for its name.
        recorded: Whether a table's settings hold it: "always", or the setting beside it that must be given; empty for
            never.
    """

    about: str
    flag: str = ""
    help: str = ""
    metavar: str = ""
    group: Group | None = None
    first: bool = False
    gt: float | None = None
    ge: float | None = None
    le: float | None = None
    api: tuple[Literal["calibrate", "evaluate"], ...] = ("calibrate",)
    keyword: str = ""
    recorded: str = ""
