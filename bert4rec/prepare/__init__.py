"""Left of the disk: raw interactions become a dataset folder, with Polars and without torch."""
