import os

# onnxruntime 1.31 and newer reports its use to its makers, and says so on stderr where there is no home to note an
# identifier in; who wants that sets the variable to 0
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
