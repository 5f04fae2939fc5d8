"""The dataset folder between preparation and training: its schema, its reader, its card, its check."""
