"""Data sets scored: what is asked for each row, what comes of the answers, and a report of them."""
