"""A trained model in use: recommendations, similar items and vectors, on one process and in plain torch."""
