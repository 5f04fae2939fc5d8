"""From ranks and lists to what a report says of them, how certainly, and for whom."""
