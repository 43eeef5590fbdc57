"""How a transformers model becomes one that the Engine runs, without code for any one model.

loader  opens a folder, probes, loads   ·   probe  the rules by which a model is refused
hook    the one attention function      ·   linear linear layers over packed weights
packing weights laid out for products  ·   product the best of them, by product.c
gguf    converts a GGUF file to a folder, once
"""
