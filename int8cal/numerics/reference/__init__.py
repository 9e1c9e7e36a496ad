"""Integer layers on plain arrays, bit for bit: the oracle of the tests, and what the audit runs on data.

| file | what it computes |
|---|---|
| `dot.py` | `dot`: patches times rows in s32, exact or with VPMADDUBSW's saturation; `headroom`; halved weights |
| `saturation.py` | which pairs of weights can saturate, and the loop that counts how much and how often they do |
| `windows.py` | `Window` (kernel, strides, dilations, pads) and `patches` (im2col, any number of axes) |
| `convolution.py` | `convolve`, and weights as rows |
| `transposed.py` | `convolve_transposed`, and its weights as rows |
| `matmul.py` | `matmul` (weights, or two activations) and `gemm` |
| `requantize.py` | s32 to 8 bits: onnxruntime's bits, and oneDNN's formula with post-ops; dynamic quantization |
| `elementwise.py` | Add and Mul: the formula, and onnxruntime's float32 bits |
| `pooling.py` | average in s32, onnxruntime's average pools, maximum |
| `cells.py` | LSTM, GRU and RNN, with float products, onnxruntime's dynamic ones and oneDNN's |

A layer gives `Sums`: the sums as the hardware leaves them, the exact ones, how many pairs saturated and the largest sum
per output channel. `requantize` turns sums into codes.

Where onnxruntime's AVX2 kernels saturate, and so where pairs are to be given: u8 activations by s8 weights, positions
(2k, 2k + 1) of a row, in Conv (grouped, too) and matrix products; the s8 activations of a QDQ model, which it turns
into u8. Where they are exact: unsigned weights; s8 by s8 that a model asks for by name (QLinearConv, MatMulInteger);
one input and one output channel per group.
"""
