"""Converted models: ONNX files, programs of torch.export and tokenizer files, and the checks of their outputs."""
