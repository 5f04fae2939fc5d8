"""Models and losses; only the item table and the losses over it depend on the number of processes."""
