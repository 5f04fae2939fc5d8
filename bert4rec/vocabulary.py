"""The item vocabulary. No special id depends on the size of the catalogue, so a grown catalogue keeps every id."""

PAD_ID = 0
MASK_ID = 1
FIRST_ITEM_ID = 2


def table_rows(n_items: int) -> int:
    """Rows of the item table for a catalogue of `n_items` items: the items and the special ids before them."""
    return FIRST_ITEM_ID + n_items
