"""int8cal: calibrate and quantize ONNX models to int8."""

__version__ = "0.1.0"
