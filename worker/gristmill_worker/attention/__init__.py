"""Attention over the paged KV cache.

base        what a backend does and what it is told; the layout of the cache
reference   plain torch, one Sequence after the other: the oracle
compiled    kernel.c, built on this machine at first use where a C compiler is present
"""
