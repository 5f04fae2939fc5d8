"""Who holds what: the footprint, the plan, and its application to a model."""
