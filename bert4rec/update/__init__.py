"""Update a model with new rows: append, score, train, judge, switch."""
