"""The engine of libsemantic: one registry of models on ONNX Runtime."""
