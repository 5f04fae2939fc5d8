"""An HTTP server of recommendations, from a models folder, a run or a package."""
