"""Attention over the paged KV cache.

base        what a backend does and what it is told; the layout of the cache
reference   plain torch, one Sequence after the other: the oracle
compiled    kernel.c, built on this machine at first use where a C compiler is present
paged       for GPUs: decode and prefill told apart, with what was chosen for each
decode      rows with one new token, in plain torch   ·   triton_decode   the same by a kernel
prefill     rows with several: torch's varlen attention, or SDPA
slots       writing to and reading from the cache in plain torch
choose      the fastest of these that this machine has   ·   self_test   against the reference
"""
