"""A trained model in use: recommendations, similar items, vectors and exports, on one process and in plain torch."""
