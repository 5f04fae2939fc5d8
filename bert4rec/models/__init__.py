"""The networks and their losses; nothing here knows of processes but the parts of the item table."""
