"""Continuous batching: Jobs in, tokens out, one iteration per `step`.

base            the Engine protocol that the Worker sees
engine          Engine over our own scheduler and model runner: schedule, launch, take in
launch          a step on its way: what the device is told, and what it found when that is read
answer          what a Sequence hands out at its end
sequence        a Job inside the Engine
scheduler       how many tokens each Sequence computes in the next step; plan: that decision
block_manager   fixed-size Blocks of KV cache, prefix caching
underway        which prefixes are being computed, and who waits for one
forward_batch   the packed tensors of one step
model_runner    runs them through the model
step_graph      the same for decode alone, held as CUDA graphs
kv_cache        the tensors behind the slots
sampler         picks tokens: penalties, draw (limits and noise), likeliest (the largest logits)
decoding        what is kept of a row beside its ids: how it is sampled, when it ends
grammar         what the grammars of rows allow next: state from the ids, masks for a step at once
logprobs        log-probabilities for the rows that ask
detokenizer     text from token ids, stop strings
token_bytes     the bytes that a token stands for

This folder knows nothing of queues, stores, ledgers or settings.
"""
