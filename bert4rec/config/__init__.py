"""Settings: the tables, where their values come from, what the automatic ones become."""
