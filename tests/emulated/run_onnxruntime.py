"""Runs models in onnxruntime, one thread, in a process of its own: natively or under `qemu-x86_64 -cpu Haswell`.

Usage: python run_onnxruntime.py JOBS.json. Each job names a model, an .npz of feeds whose first axis counts the runs, the
.npz to write (outputs stacked over the runs), the optimization level and where to save the optimized model.
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime as ort

LEVELS = {
    "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
}


def run(job: dict) -> None:
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = LEVELS[job["level"]]
    options.log_severity_level = 3
    options.optimized_model_filepath = job["optimized"]
    session = ort.InferenceSession(job["model"], options, providers=["CPUExecutionProvider"])
    with np.load(job["feeds"]) as data:
        feeds = {name: data[name] for name in data.files}
    runs = len(next(iter(feeds.values())))
    names = [output.name for output in session.get_outputs()]
    results = [session.run(names, {name: values[i] for name, values in feeds.items()}) for i in range(runs)]
    np.savez(job["outputs"], **{name: np.stack([result[k] for result in results]) for k, name in enumerate(names)})


if __name__ == "__main__":
    for each in json.loads(Path(sys.argv[1]).read_text()):
        run(each)
