"""What the probe must say of each architecture of transformers 5.24 that it does not accept."""

from __future__ import annotations

#: Rule of the probe -> the architectures that it refuses, as shrink.py configures them.
REFUSED_BY_RULE: dict[int, str] = {
    # No AttentionInterface, or a forward pass that depends on the values of tensors.
    1: """big_bird blt dbrx falcon git gpt_neo gpt_neox_japanese jetmoe longcat_flash megatron-bert
        openai-gpt reformer rembert xglm xlm xmod""",
    # Cross-attention in some layers.
    2: "mllama",
    # Recurrent, convolutional, sparse or chunked layers; a window that lives in the mask alone.
    3: """axk2 bailing_hybrid bamba deepseek_v32 deepseek_v4 dots3_note dots3_note_text falcon_h1
        falcon_mamba glm_moe_dsa granitemoehybrid hy_v4 inkling2_loop_text inkling2_text
        inkling_text jamba kimi_linear lara_mini lfm2 lfm2_moe lfm3 llama4 llama4_text mamba mamba2
        minimax minimax_m3_vl_text nemotron_h olmo_hybrid qwen2_moe qwen3_5 qwen3_5_moe
        qwen3_5_moe_text qwen3_5_text qwen3_next qwen4_exp qwen4_exp_text recurrent_gemma zamba
        zamba2 zaya""",
    # A mask of its own.
    4: "doge",
    # Not causal, unless configured as a decoder.
    6: """bert bert-generation camembert data2vec-text electra ernie roberta roberta-prelayernorm
        roc_bert xlm-roberta xlm-roberta-xl""",
    7: "got_ocr2",
    # No position_ids or no logits_to_keep: encoder-decoders' halves, ALiBi, recurrent models.
    8: """bart bigbird_pegasus blenderbot blenderbot-small bloom cpmant gemma4_unified_assistant
        marian mbart moss_transcribe_diarize mpt musicgen musicgen_melody mvp pegasus plbart
        prophetnet roformer rwkv trocr whisper xlnet xlstm""",
}
REFUSED: dict[str, int] = {
    name: rule for rule, names in REFUSED_BY_RULE.items() for name in names.split()
}
#: Architectures of which there is no tiny model to compare with, and why.
NOT_BUILDABLE: dict[str, str] = {
    "gemma3n": "its image part needs timm and Pillow (gemma3n_text is tested)",
    "gemma4_assistant": "drafts for another model, whose keys and values it asks for",
}
#: Run by `make test`; all the others by `make test-all`.
SAMPLE: dict[str, str] = {
    "llama": "grouped queries",
    "gpt2": "absolute positions, Conv1D",
    "opt": "absolute positions with an offset",
    "gpt_neox": "parallel residual",
    "phi": "part of a head is rotated",
    "gemma2": "soft cap, windows",
    "gemma3_text": "windows",
    "gemma3n_text": "layers that share keys",
    "gemma4_text": "shared keys, head sizes that differ by layer",
    "cohere2": "windows, layers without positions",
    "gpt_oss": "sinks, windows, experts",
    "deepseek_v3": "latent attention (keys and values of different sizes), experts",
    "minicpm3": "latent attention",
    "mixtral": "experts",
    "hunyuan_v1_moe": "experts; a router that reads its own weight",
    "mimo_v2_flash": "key heads that differ by layer, sinks",
    "diffllama": "two attention calls in a layer",
    "hrm_text": "layers that run several times",
    "dory": "layers that run several times",
    "emu3": "a configuration that insists on a padding id",
    "bloom": "refused: no position_ids",
    "qwen2_moe": "refused: its window lives in the mask",
    "lfm2": "refused: convolutions",
}
#: Exact, but a row's last bits depend on its company: the largest difference of a logit, and why.
NOT_BIT_STABLE: dict[str, tuple[float, str]] = {
    "kolibri1": (1e-5, "a sigmoid over the two chosen experts: rows narrower than a vector"),
}
