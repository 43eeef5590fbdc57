"""A fleet without machines: the Router and dispatch as they are, workers and time as arithmetic.

A user picks the size of pools with it before buying machines; policies are compared on it.
"""
