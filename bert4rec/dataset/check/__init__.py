"""`bert4rec check`: proves that a dataset folder is whole and leaks nothing. NumPy and Arrow, no torch."""
