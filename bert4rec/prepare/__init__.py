"""Make a dataset folder from raw interactions, with Polars and without torch."""
