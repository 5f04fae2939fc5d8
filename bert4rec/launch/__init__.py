"""Commands as processes of their own: what a benchmark runs one after another, and what Python trains on several."""
