"""Attention over the paged KV cache. base: the interface; reference: the oracle in plain torch."""
