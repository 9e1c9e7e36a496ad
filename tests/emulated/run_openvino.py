"""Runs models in OpenVINO's CPU plugin, one thread, in a process of its own, since oneDNN reads ONEDNN_MAX_CPU_ISA once.

Usage: python run_openvino.py JOBS.json. Each job names a model, an .npz of feeds whose first axis counts the runs, the .npz to write
and a .json for what the runtime made of the layers.
"""

import json
import sys
from pathlib import Path

import numpy as np
import openvino as ov


def kernels(compiled: ov.CompiledModel) -> list[str]:
    """What each layer became: "Convolution jit_avx2_I8" is an integer kernel."""
    facts = [node.get_rt_info() for node in compiled.get_runtime_model().get_ops()]
    return [" ".join(each[key].astype(str) for key in ("layerType", "primitiveType")) for each in facts]


def run(core: ov.Core, job: dict) -> None:
    settings = {"INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    compiled = core.compile_model(job["model"], "CPU", settings)
    Path(job["kernels"]).write_text(json.dumps(kernels(compiled)))
    with np.load(job["feeds"]) as data:
        feeds = {name: data[name] for name in data.files}
    runs = len(next(iter(feeds.values())))
    request = compiled.create_infer_request()
    results = []
    for i in range(runs):
        answer = request.infer({name: values[i] for name, values in feeds.items()})
        results.append({port.any_name: np.array(value) for port, value in answer.items()})
    np.savez(job["outputs"], **{name: np.stack([result[name] for result in results]) for name in results[0]})


if __name__ == "__main__":
    runtime = ov.Core()
    for each in json.loads(Path(sys.argv[1]).read_text()):
        run(runtime, each)
