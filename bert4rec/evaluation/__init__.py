"""From a model to ranks, and from ranks to metrics."""
