"""Generic Hugging Face fields of config.json that do not change the forward pass."""

GENERIC = frozenset(
    "architectures model_type dtype torch_dtype transformers_version auto_map use_cache "
    "initializer_range vision_config media_placeholder_token_id ignore_index id2label label2id "
    "return_dict output_attentions output_hidden_states chunk_size_feed_forward _name_or_path "
    "problem_type is_encoder_decoder topk_method use_grouped_topk attention_dropout "
    "max_window_layers use_sliding_window "
    "pad_token_id bos_token_id eos_token_id speculators_version "
    "speculators_config target_hidden_size "
    # generation defaults that older transformers wrote into every config
    "top_k top_p temperature max_length min_length do_sample num_beams num_beam_groups "
    "length_penalty no_repeat_ngram_size repetition_penalty diversity_penalty early_stopping "
    "num_return_sequences output_scores return_dict_in_generate remove_invalid_values "
    "typical_p encoder_no_repeat_ngram_size forced_bos_token_id forced_eos_token_id "
    "begin_suppress_tokens suppress_tokens bad_words_ids exponential_decay_length_penalty "
    "decoder_start_token_id sep_token_id prefix task_specific_params pruned_heads finetuning_task "
    "cross_attention_hidden_size add_cross_attention tie_encoder_decoder is_decoder "
    "tokenizer_class torchscript use_bfloat16 tf_legacy_loss unk_token_id use_unified_vision_chunk "
    "video_placeholder_token_id video_placeholder encoder_outputs image_placeholder "
    # how other programs run the model
    "flex_attention_backend attn_implementation _attn_implementation "
    "_attn_implementation_autoset model_max_length".split()
)
