"""A fleet without machines: the Router and dispatch as they are, workers and time as arithmetic.

A user picks the size of pools with it before buying machines, and policies are compared on it.

work        rows and batches by seed          scenarios   fleets and traces, fixed before policies
machine     limits and speeds of a worker     engine      continuous batching over jumps of steps
worker      takes Shards, stores, dies        lanes       the queue
backlog     what the Ledger would know        control     reads, dispatches and accepts, at costs
policies    Router, one Lane, plain queue     simulate    all of it, to figures
"""
