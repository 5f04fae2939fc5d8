"""From rows to histories: filters, the order of time, dense ids, in bounded memory."""
