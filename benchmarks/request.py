"""What crosses between the benchmark and its worker processes."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Request:
    """One job for a worker.

    Attributes:
        tool: Name of the contestant.
        action: "calibrate", "quantize" or "latency".
        model: Name of the workload.
        samples: How many samples.
        threads: For every tool.
        folder: Where models and samples are kept.
        zoo: Directory of the zoo.
        streamed: Take samples from a small pool instead of holding all of them.
        output: Where "quantize" writes its model.
        rivals: For "latency": tool -> path of its int8 model.
        rounds, repeat: For "latency": how many rounds, and runs in a row per session and round.
    """

    tool: str
    action: str
    model: str
    samples: int
    threads: int
    folder: str
    zoo: str
    streamed: bool = False
    output: str = ""
    rivals: dict[str, str] = field(default_factory=dict)
    rounds: int = 1
    repeat: int = 1


@dataclass(frozen=True)
class Measured:
    """What a worker reports.

    Attributes:
        seconds: The timed span; what belongs to it is the tool's to say.
        stations: Seconds of single stations; those outside the span too.
        facts: Further figures: tapped_bytes (per sample), tensors, gb_per_s.
        series: For "latency": tool -> milliseconds, the median of each round.
        peak_mb: Peak memory of the process, None where the system does not tell.
        process_seconds: From its start to its end, imports included; filled in by the parent.
        cpu_seconds: Processor time of all its threads, likewise.
    """

    seconds: float = 0.0
    stations: dict[str, float] = field(default_factory=dict)
    facts: dict[str, float] = field(default_factory=dict)
    series: dict[str, list[float]] = field(default_factory=dict)
    peak_mb: float | None = None
    process_seconds: float = 0.0
    cpu_seconds: float = 0.0
