"""From histories to splits, windows and evaluation negatives."""
