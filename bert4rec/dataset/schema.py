"""What both sides of the disk agree on. No special id depends on the catalogue's size, so a grown one keeps its ids."""

DATASET_FORMAT = 1  # version of the dataset folder

PAD_ID = 0
MASK_ID = 1
FIRST_ITEM_ID = 2


def table_rows(n_items: int) -> int:
    """Rows of the item table for a catalogue of `n_items` items: the items and the special ids before them."""
    return FIRST_ITEM_ID + n_items
