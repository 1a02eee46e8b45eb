"""Every field that a drafter's config.json is known to carry, and what becomes of it: one table.

A field is *used*, *checked* against the tensors or the target, known to have *no effect* on what the pinned llama.cpp
drafts, or *refused* because its graphs cannot express it.

Sources: the exporters (z-lab, DeepSpec, SpecForge, speculators, ModelOpt, NeMo, LiquidAI, NVIDIA), the readers (vLLM,
SGLang, TensorRT-LLM, transformers, mlx-dspark) and llama.cpp's converter.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

Treatment = Literal["used", "checked", "no effect", "refused"]

# families by the names that Description.family and the documents use
DFLASH, SECOND, SPARK, GEMMA, DEEPSEEK, EAGLE, MTP = (
    "DFlash",
    "DFlash2",
    "DSpark",
    "Gemma-4 DSpark",
    "DeepSeek-V4",
    "EAGLE-3",
    "MTP",
)
QWEN = (DFLASH, SECOND, SPARK)
BLOCKS = (*QWEN, GEMMA)  # families that a dflash_config may describe
DRAFTS = (*BLOCKS, DEEPSEEK)
ALL = (*DRAFTS, EAGLE, MTP)

# where a field stands; a backbone's field is at the top or in transformer_layer_config or text_config
TOP, BACKBONE, NESTED, EAGLES, ROPE = "top level", "backbone", "dflash_config", "eagle_config", "rope table"
SPECULATORS, PROPOSAL, VERIFIER = "speculators_config", "proposal_methods", "verifier"


class Field(NamedTuple):
    """``harmless``: values of a refused field that ask for nothing."""

    names: str  # one or several, separated by spaces, for one meaning
    where: tuple[str, ...]
    families: tuple[str, ...]
    treatment: Treatment
    reason: str
    harmless: tuple[Any, ...] = (None, False)


def _no_effect(names: str, where: str, reason: str, families: tuple[str, ...] = ALL) -> Field:
    return Field(names, (where,), families, "no effect", reason)


def _refused(names: str, where: tuple[str, ...], families: tuple[str, ...], reason: str, *harmless: Any) -> Field:
    return Field(names, where, families, "refused", reason, (None, *(harmless or (False,))))


TRAINING = "training only"
GENERATION = "generation defaults; the target's settings count"
HUGGING_FACE = "how Hugging Face's library runs or names the model"
TOKENS = "token ids come from the target's tokenizer"

TABLE: tuple[Field, ...] = (
    # which drafter
    Field("architectures", (TOP,), ALL, "used", "the family"),
    Field("architectures", (BACKBONE,), ALL, "no effect", "the top level's counts"),
    Field(
        "model_type",
        (TOP, BACKBONE),
        ALL,
        "used",
        "Laguna is refused by it; otherwise the family follows from architectures",
    ),
    Field("speculators_model_type", (TOP,), ALL, "used", "the family, where architectures are missing or generic"),
    Field("projector_type", (TOP, NESTED), BLOCKS, "used", "dspark; domino and dflare are refused"),
    Field("text_config transformer_layer_config", (TOP,), ALL, "used", "the backbone's fields"),
    Field("dflash_config", (TOP,), BLOCKS, "used", "the drafter's own table"),
    Field("eagle_config", (TOP,), (EAGLE,), "used", "the head's own table"),
    Field("speculators_config", (TOP,), ALL, "used", "proposals and verifier"),
    Field("quantization_config compression_config", (TOP, BACKBONE), ALL, "used", "how the weights are stored"),
    # the backbone's sizes
    Field("hidden_size", (BACKBONE,), ALL, "used", "embedding_length; checked against every tensor"),
    Field("num_hidden_layers", (BACKBONE,), (*BLOCKS, EAGLE, MTP), "used", "block_count; checked against the tensors"),
    Field("num_hidden_layers", (BACKBONE,), (DEEPSEEK,), "no effect", "the target's; the stages mtp.N are counted"),
    Field(
        "num_attention_heads num_key_value_heads", (BACKBONE,), ALL, "used", "head counts; checked against q, k, v, o"
    ),
    Field("head_dim", (BACKBONE,), ALL, "used", "key and value length; derived from q_proj where missing"),
    Field("intermediate_size", (BACKBONE,), ALL, "used", "feed_forward_length; checked against the tensors"),
    Field("vocab_size", (BACKBONE,), ALL, "used", "rows of the vocabulary, padding of the tokenizer"),
    Field("draft_vocab_size", (BACKBONE,), (*BLOCKS, EAGLE), "checked", "rows of lm_head, d2t and markov_w2"),
    Field("max_position_embeddings", (BACKBONE,), ALL, "used", "context_length; the target's where missing"),
    Field("rms_norm_eps norm_eps", (BACKBONE,), ALL, "used", "attention.layer_norm_rms_epsilon"),
    Field("hidden_act hidden_activation", (BACKBONE,), (*BLOCKS, EAGLE), "used", "silu; gelu where the graph has it"),
    Field("attention_bias", (BACKBONE,), (*BLOCKS, EAGLE), "checked", "true needs *_proj.bias, which the graphs lack"),
    Field("mlp_bias", (BACKBONE,), (*BLOCKS, EAGLE), "checked", "true needs *_proj.bias, which the graphs lack"),
    Field(
        "tie_word_embeddings",
        (BACKBONE,),
        (*BLOCKS, EAGLE),
        "checked",
        "true beside an lm_head that differs is a warning",
    ),
    Field("has_embed_tokens", (BACKBONE,), BLOCKS, "checked", "true needs embed_tokens; false leaves it out"),
    Field("has_lm_head", (BACKBONE,), (*BLOCKS, EAGLE), "checked", "compared with the tensor lm_head"),
    # attention windows and causality
    Field(
        "layer_types sliding_window",
        (BACKBONE,),
        (*QWEN, EAGLE, MTP),
        "used",
        "attention.sliding_window and its pattern",
    ),
    Field("layer_types sliding_window use_sliding_window", (NESTED,), QWEN, "used", "where the backbone has none"),
    Field("layer_types", (BACKBONE,), (GEMMA,), "used", "every layer must be full_attention"),
    Field("sliding_window", (BACKBONE,), (DEEPSEEK,), "used", "attention.sliding_window"),
    _no_effect(
        "sliding_window", BACKBONE, "Gemma's own window; the drafter's is dflash_config.swa_window_size", (GEMMA,)
    ),
    Field(
        "use_sliding_window max_window_layers", (BACKBONE,), QWEN, "used", "whether and from where layer_types count"
    ),
    Field("use_swa swa_window_size", (NESTED,), BLOCKS, "used", "a window on every layer"),
    Field("is_causal", (BACKBONE,), DRAFTS, "used", "attention.causal"),
    Field("causal", (NESTED,), BLOCKS, "used", "attention.causal, after is_causal"),
    Field("dflash_query_causal", (TOP, NESTED), BLOCKS, "used", "attention.causal, after causal"),
    Field("sliding_window_non_causal", (TOP, NESTED), BLOCKS, "used", "attention.causal where one flag can say it"),
    Field("attention_value_scale", (BACKBONE, NESTED), BLOCKS, "used", "attention.value_scale"),
    Field("attention_sink_bias", (TOP, NESTED), BLOCKS, "checked", "compared with the layers' sink tensors"),
    Field("use_attention_sink", (NESTED,), BLOCKS, "checked", "another name of attention_sink_bias"),
    Field("use_gemma_norm", (BACKBONE, NESTED), QWEN, "used", "1 is added to every norm"),
    Field(
        "rope_is_neox_style is_neox_style", (BACKBONE, NESTED), (*QWEN, EAGLE), "used", "rows of q and k; --rope-style"
    ),
    _refused("attention_mode", (NESTED,), BLOCKS, "its dflash graph has no latent (MLA) attention", "gqa", "mha"),
    _refused(
        "attention_modes", (NESTED,), BLOCKS, "its dflash graph has neither latent nor linear attention", "gqa", "mha"
    ),
    _refused(
        "draft_layer_types", (TOP,), BLOCKS, "its dflash graph has neither latent nor linear attention", "gqa", "mha"
    ),
    _refused(
        "conditioning_source",
        (NESTED,),
        BLOCKS,
        "a drafter gets the target's hidden states, not its keys and values",
        "hidden_states",
        "target_hidden",
    ),
    _no_effect("training_mode prefix_weight_base", NESTED, TRAINING, BLOCKS),
    _no_effect(
        "moe_aux_loss_coeff moe_dispatch moe_grouped_dispatch moe_bias_update_rate",
        NESTED,
        "training of experts, which a checkpoint's tensors show",
        BLOCKS,
    ),
    _refused("kv_lora_rank", (BACKBONE,), (*BLOCKS, EAGLE), "its graph has no latent (MLA) attention", 0),
    _refused("enable_qwen35_gated_q_proj", (TOP,), QWEN, "its dflash graph has no gated attention"),
    _refused("log_snr_conditioning", (TOP, NESTED), BLOCKS, "its DSpark head has no noise-level embedding"),
    # the draft block
    Field("block_size", (TOP, NESTED), BLOCKS, "used", "block_size; --block-size"),
    Field("mask_token_id mask_token", (TOP, NESTED), BLOCKS, "used", "tokenizer.ggml.mask_token_id; --mask-token-id"),
    Field("target_layer_ids", (TOP, NESTED), BLOCKS, "used", "target_layers, layer outputs; --taps"),
    Field("layer_ids", (NESTED,), BLOCKS, "used", "another name of target_layer_ids"),
    Field("aux_hidden_state_layer_ids", (TOP,), BLOCKS, "used", "target_layers, layer inputs (speculators)"),
    Field("eagle_aux_hidden_state_layer_ids", (TOP,), (*BLOCKS, EAGLE), "used", "target_layers, layer inputs (vLLM)"),
    Field("num_target_layers", (TOP, NESTED), BLOCKS, "checked", "taps must lie within; compared with the target"),
    Field(
        "target_hidden_size",
        (TOP, BACKBONE),
        (*BLOCKS, EAGLE),
        "checked",
        "columns of fc; llama.cpp needs hidden_size for dflash",
    ),
    Field("sample_from_anchor", (TOP, NESTED), BLOCKS, "used", "sample_from_anchor; --sample-from-anchor"),
    Field(
        "query_zero_predicts_next", (TOP, NESTED), BLOCKS, "used", "another name of sample_from_anchor (vLLM, SGLang)"
    ),
    Field("logits_start", (TOP,), BLOCKS, "used", "0 and 1: sample_from_anchor true and false (mlx-dspark)"),
    Field(
        "shift_label",
        (TOP, NESTED),
        BLOCKS,
        "used",
        "label of slot k is token k + 1: sample_from_anchor (SpecForge, ModelOpt)",
    ),
    Field(
        "final_logit_softcapping output_multiplier",
        (BACKBONE, NESTED),
        BLOCKS,
        "used",
        "soft cap (not for Gemma-4 DSpark) and logit_scale",
    ),
    Field("input_embedding_scale", (BACKBONE, NESTED), QWEN, "used", "embedding_scale"),
    Field(
        "conv_kernel_size conv_group_size selector_rank selector_top_k",
        (TOP, NESTED),
        (SECOND,),
        "used",
        "checked against the tensors",
    ),
    Field("use_aux_hidden_state", (NESTED,), BLOCKS, "checked", "false contradicts fc"),
    _refused("beam_width beam_size", (NESTED,), (SECOND,), "it walks DFlash2's lattice without beams", 1),
    # DSpark's heads
    Field("markov_rank", (TOP, NESTED), (SPARK, GEMMA), "checked", "columns of markov_w1"),
    Field("markov_head_type", (TOP, NESTED), (SPARK, GEMMA), "used", "vanilla; gated and recurrent heads are refused"),
    Field(
        "enable_confidence_head use_confidence_head",
        (TOP, NESTED),
        (SPARK, GEMMA),
        "checked",
        "compared with confidence_head.proj",
    ),
    Field("confidence_head_with_markov", (TOP, NESTED), (SPARK, GEMMA), "checked", "columns of confidence_head.proj"),
    _no_effect("confidence_head_alpha num_anchors max_anchors", NESTED, TRAINING, BLOCKS),
    _no_effect("confidence_head_alpha num_anchors max_anchors", TOP, TRAINING, BLOCKS),
    _no_effect("min_log_snr max_log_snr", TOP, "read with log_snr_conditioning only", BLOCKS),
    _no_effect(
        "gru_hidden_dim emb_dim pure_draft_prefix_len",
        NESTED,
        "Domino's head, refused by projector_type and tensors",
        BLOCKS,
    ),
    _no_effect(
        "gru_hidden_dim emb_dim pure_draft_prefix_len",
        TOP,
        "Domino's head, refused by projector_type and tensors",
        BLOCKS,
    ),
    # Gemma-4 DSpark
    Field(
        "attention_k_eq_v enable_moe_block", (BACKBONE,), (GEMMA,), "used", "K = V and no experts; otherwise refused"
    ),
    Field(
        "global_head_dim num_global_key_value_heads",
        (BACKBONE,),
        (GEMMA, MTP),
        "used",
        "sizes of the full-attention layers",
    ),
    Field("per_layer_config", (BACKBONE,), (GEMMA, MTP), "used", "the same sizes as transformers 5.24 writes them"),
    # DeepSeek-V4
    Field(
        "dspark_block_size dspark_noise_token_id dspark_target_layer_ids",
        (TOP,),
        (DEEPSEEK,),
        "used",
        "block, mask token, taps",
    ),
    Field("dspark_markov_rank", (TOP,), (DEEPSEEK,), "checked", "columns of markov_w1"),
    Field("qk_rope_head_dim q_lora_rank o_groups o_lora_rank", (BACKBONE,), (DEEPSEEK,), "used", "attention sizes"),
    Field(
        "n_routed_experts num_experts_per_tok n_shared_experts moe_intermediate_size n_group topk_group",
        (BACKBONE,),
        (DEEPSEEK,),
        "used",
        "experts",
    ),
    Field(
        "scoring_func routed_scaling_factor norm_topk_prob swiglu_limit",
        (BACKBONE,),
        (DEEPSEEK,),
        "used",
        "routing; sqrtsoftplus only",
    ),
    Field(
        "index_n_heads index_head_dim index_topk compress_rope_theta",
        (BACKBONE,),
        (DEEPSEEK,),
        "used",
        "keys that the loader wants",
    ),
    Field("hc_mult hc_sinkhorn_iters hc_eps", (BACKBONE,), (DEEPSEEK,), "used", "hyper connections"),
    _no_effect(
        "compress_ratios num_hash_layers num_nextn_predict_layers",
        BACKBONE,
        "the target's layers; a stage has none of these",
        (DEEPSEEK,),
    ),
    # EAGLE-3
    Field("norm_before_residual", (TOP,), (EAGLE,), "used", "norm_before_residual"),
    Field("norm_before_fc", (TOP, EAGLES), (EAGLE,), "checked", "compared with input_norm; norm_before_fc"),
    Field(
        "eagle_aux_hidden_state_layer_ids",
        (EAGLES,),
        (EAGLE,),
        "used",
        "target_layers, layer outputs (ModelOpt, SpecForge)",
    ),
    Field("num_aux_hidden_states", (TOP,), (EAGLE,), "checked", "number of taps"),
    _refused(
        "norm_output",
        (TOP,),
        (EAGLE,),
        "its eagle3 graph hands the state before the final norm to the next draft token",
    ),
    _refused(
        "return_hidden_post_norm",
        (EAGLES,),
        (EAGLE,),
        "its eagle3 graph hands the state before the final norm to the next draft token",
    ),
    _refused("fc_norm use_aux_norm", (TOP, EAGLES), (EAGLE,), "its eagle3 graph has no norm for each tap"),
    _refused("use_mtp_layernorm eh_proj_before_attn", (EAGLES,), (EAGLE,), "its eagle3 graph has no such layer"),
    _refused(
        "parallel_draft_step parallel_draft_heads_num_layers",
        (EAGLES,),
        (EAGLE,),
        "its eagle3 graph drafts one token a pass",
        0,
        1,
    ),
    _refused("parallel_drafting", (TOP,), (EAGLE,), "its eagle3 graph drafts one token a pass"),
    Field("use_aux_hidden_state", (TOP, EAGLES), (EAGLE,), "checked", "false contradicts fc"),
    Field(
        "use_input_layernorm_in_first_layer use_last_layernorm",
        (TOP, EAGLES),
        (EAGLE,),
        "checked",
        "false contradicts the norm's tensor",
    ),
    _no_effect("next_layer_regular", EAGLES, "layers after the first; the head has one", (EAGLE,)),
    _no_effect("embed_requires_grad", TOP, TRAINING, (EAGLE,)),
    _no_effect("target_model_type ttt_length", TOP, TRAINING, (EAGLE,)),
    _no_effect("load_embedding_from_target load_lm_head_from_target", TOP, "the tensors decide", (EAGLE,)),
    # Gemma-4 assistants
    Field("backbone_hidden_size", (TOP,), (MTP,), "used", "embedding_length_out; compared with the target"),
    Field("num_kv_shared_layers", (BACKBONE,), (MTP,), "used", "attention.shared_kv_layers"),
    Field(
        "use_double_wide_mlp enable_moe_block hidden_size_per_layer_input",
        (BACKBONE,),
        (MTP,),
        "used",
        "feed-forward widths; experts are refused",
    ),
    Field("final_logit_softcapping", (BACKBONE,), (MTP,), "used", "final_logit_softcapping"),
    Field("use_ordered_embeddings", (TOP,), (MTP,), "checked", "compared with masked_embedding; that head is left out"),
    _no_effect(
        "num_centroids centroid_intermediate_top_k vocab_size_per_layer_input",
        TOP,
        "the clustered head, left out with a warning",
        (MTP,),
    ),
    # rope, wherever it stands
    Field("rope_parameters", (BACKBONE,), ALL, "used", "the rope table"),
    Field("rope_scaling", (BACKBONE,), (*DRAFTS, EAGLE), "used", "the rope table; it counts where both are stated"),
    Field("rope_theta", (BACKBONE, ROPE), ALL, "used", "rope.freq_base; --rope-theta"),
    Field(
        "global_rope_theta rope_global_theta rope_theta_global rotary_emb_base",
        (BACKBONE,),
        (*DRAFTS, EAGLE),
        "used",
        "other names of rope_theta",
    ),
    Field(
        "local_rope_theta rope_local_theta rope_theta_local swa_rope_theta rope_local_base_freq",
        (BACKBONE,),
        (*QWEN, GEMMA, EAGLE),
        "used",
        "rope.freq_base_swa, which llama.cpp replaces by the main base",
    ),
    Field(
        "rope_type type",
        (ROPE,),
        ALL,
        "used",
        "none, linear, yarn, llama3, proportional, dynamic without alpha; others are refused",
    ),
    Field("full_attention sliding_attention", (ROPE,), ALL, "used", "tables of the two kinds of layers"),
    Field(
        "factor original_max_position_embeddings low_freq_factor high_freq_factor",
        (ROPE,),
        (*DRAFTS, EAGLE),
        "used",
        "scaling keys or rope_freqs",
    ),
    Field("original_max_position_embeddings", (BACKBONE,), (*DRAFTS, EAGLE), "used", "where the rope table has none"),
    Field(
        "attention_factor attn_factor mscale mscale_all_dim apply_yarn_scaling",
        (ROPE,),
        (*QWEN, EAGLE),
        "used",
        "rope.scaling.attn_factor",
    ),
    Field(
        "beta_fast beta_slow extrapolation_factor truncate",
        (ROPE,),
        (*QWEN, EAGLE),
        "used",
        "rope_freqs where they are not the runtime's own",
    ),
    _no_effect("beta_fast beta_slow", ROPE, "as the runtime's own", (DEEPSEEK,)),
    _refused(
        "attention_factor attn_factor", (ROPE,), (DEEPSEEK,), "its DeepSeek-V4 graph scales no rotated values", 1, 1.0
    ),
    _no_effect("mscale mscale_all_dim", ROPE, "DeepSeek-V4 scales no rotated values", (DEEPSEEK,)),
    Field(
        "partial_rotary_factor",
        (BACKBONE, ROPE),
        (*QWEN, GEMMA, MTP),
        "used",
        "rope.dimension_count; --rope-dimension-count",
    ),
    Field("rope_pct rope_percent", (BACKBONE,), QWEN, "used", "other names of partial_rotary_factor"),
    Field("rope_dim", (ROPE,), QWEN, "checked", "must be the rotated dimensions of a head"),
    Field("alpha", (ROPE,), (*QWEN, EAGLE), "used", "dynamic rope with alpha is refused"),
    Field("mrope_section", (ROPE,), (*QWEN, EAGLE), "used", "rope.dimension_sections; text has equal positions in all"),
    _no_effect("mrope_interleaved", ROPE, "text has equal positions in all sections", ALL),
    _no_effect("rope_interleave", BACKBONE, "read for latent attention only, which is refused", (*BLOCKS, EAGLE)),
    # speculators' tables
    Field(
        "proposal_methods default_proposal_method",
        (SPECULATORS,),
        BLOCKS,
        "used",
        "how many tokens of a block are drafts",
    ),
    Field("verifier", (SPECULATORS,), ALL, "used", "the target's repository, for notes and tips"),
    Field(
        "speculative_tokens proposal_type", (PROPOSAL,), BLOCKS, "used", "block: from the anchor; block - 1: after it"
    ),
    Field("name_or_path", (VERIFIER,), ALL, "used", "named in notes and tips"),
    _no_effect("algorithm", SPECULATORS, "speculators_model_type says the same"),
    _no_effect(
        "proposal_methods default_proposal_method",
        SPECULATORS,
        "the number of drafts is llama.cpp's --spec-draft-n-max",
        (EAGLE, MTP),
    ),
    _no_effect(
        "speculative_tokens proposal_type",
        PROPOSAL,
        "the number of drafts is llama.cpp's --spec-draft-n-max",
        (EAGLE, MTP),
    ),
    _no_effect("verifier_accept_k accept_tolerance", PROPOSAL, "llama.cpp accepts the target's own tokens only"),
    _no_effect(
        "architectures hidden_size intermediate_size vocab_size max_position_embeddings bos_token_id eos_token_id",
        VERIFIER,
        "the target itself is read",
    ),
    _no_effect("speculators_version", TOP, "the writer's version"),
    # what every Hugging Face config may hold
    _no_effect(
        "dtype torch_dtype transformers_version auto_map _name_or_path _attn_implementation "
        "attn_implementation use_cache return_dict output_attentions output_hidden_states torchscript "
        "pruned_heads tie_encoder_decoder is_decoder is_encoder_decoder cross_attention_hidden_size "
        "add_cross_attention chunk_size_feed_forward finetuning_task id2label label2id problem_type "
        "task_specific_params tokenizer_class prefix use_bfloat16 tf_legacy_loss pretraining_tp "
        "base_model_tp_plan base_model_pp_plan position_embedding_type decoder_sparse_step",
        BACKBONE,
        HUGGING_FACE,
    ),
    _no_effect(
        "bos_token_id eos_token_id pad_token_id sep_token_id unk_token_id decoder_start_token_id", BACKBONE, TOKENS
    ),
    _no_effect(
        "max_length min_length do_sample early_stopping num_beams num_beam_groups diversity_penalty "
        "temperature top_k top_p typical_p repetition_penalty length_penalty no_repeat_ngram_size "
        "encoder_no_repeat_ngram_size bad_words_ids num_return_sequences output_scores "
        "return_dict_in_generate forced_bos_token_id forced_eos_token_id remove_invalid_values "
        "exponential_decay_length_penalty suppress_tokens begin_suppress_tokens",
        BACKBONE,
        GENERATION,
    ),
    _no_effect(
        "attention_dropout hidden_dropout embd_pdrop resid_pdrop initializer_range aux_loss_alpha seq_aux "
        "router_aux_loss_coef output_router_logits router_jitter_noise",
        BACKBONE,
        TRAINING,
    ),
)
