"""The dataset folder between preparation and training: its format, reader, card and check."""
