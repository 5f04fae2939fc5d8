"""A trained model for other programs: weights, vectors, and programs that need torch or onnxruntime alone."""
