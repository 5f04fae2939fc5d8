"""The memory footprint of a job, the sharding plan, and its application to a model."""
