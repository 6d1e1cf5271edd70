# SPDX-License-Identifier: Apache-2.0
"""Which flags `--help` shows, under which heading; the others are under `--help-all`.

A recipe shows those of these flags that it has. Flags of trl that would be refused, or change nothing, are in neither.
"""

GROUPS = {
    "model": (
        "model_name_or_path model_revision trust_remote_code dtype attn_implementation model_init_kwargs "
        "teacher_model_name_or_path teacher_model_init_kwargs "
        "disable_dropout router_aux_loss_coef critic_model_name_or_path share_critic_base save_critic "
        "activation_checkpointing"
    ),
    "adapters": (
        "use_peft lora_r lora_alpha lora_dropout lora_target_modules lora_modules_to_save use_dora use_rslora "
        "load_in_8bit load_in_4bit merge_adapters"
    ),
    "data": (
        "task dataset_name dataset_config dataset_train_split eval_dataset_name dataset_test_split question_column "
        "shuffle_dataset max_length drop_longer packing max_prompt_length overlong_prompts thinking_ratio "
        "system_prompt_ratio answer_only chat_template_kwargs sft_steps sft_accuracy"
    ),
    "rewards": "reward_funcs reward_model_name_or_path reward_weights judge_only_without_calls",
    "tools and environments": (
        "tools environment max_turns max_tool_calling_iterations max_turn_length max_observation_length tool_workers "
        "tool_timeout turn_discount"
    ),
    "rollout": (
        "lmbda seq_kd max_new_tokens "
        "num_generations num_generations_eval max_completion_length temperature top_k top_p min_p repetition_penalty "
        "generation_kwargs rollout_engine max_batch_rows rollout_dtype torch_engine_path speculation "
        "verify_fast_paths sglang_base_url server_timeout rollout_weight_sync rollout_sync_dir "
        "sglang_enable_sleep_mode sync_every "
        "rollout_correction rollout_correction_cap max_sampling_k3 dynamic_sampling max_resampled prompt_memory "
        "prompt_memory_floor solved_above"
    ),
    "loss": (
        "algorithm loss_type beta loss_temperature epsilon epsilon_high delta advantage_estimator scale_rewards "
        "multi_objective_aggregation num_iterations importance_sampling_level loss_aggregation "
        "mask_truncated_completions top_entropy_quantile entropy_coef use_adaptive_entropy entropy_coef_min "
        "entropy_coef_max entropy_coef_delta entropy_target use_bias_correction_kl off_policy_mask_threshold "
        "sapo_temperature_pos sapo_temperature_neg vespo_k_pos vespo_lambda_pos vespo_k_neg vespo_lambda_neg "
        "sync_ref_model ref_model_mixup_alpha ref_model_sync_steps clip_epsilon kl_coef early_stop_kl "
        "ppo_update_iters gamma lam vf_coef cliprange_value completion_only_loss assistant_only_loss label_smoothing "
        "precompute_ref_log_probs center_rewards_coefficient"
    ),
    "batch": (
        "per_device_train_batch_size gradient_accumulation_steps mini_batch_size generation_batch_size "
        "steps_per_generation max_tokens_per_microbatch forward_layout num_train_epochs max_steps"
    ),
    "optimization": (
        "defaults learning_rate critic_learning_rate lr_scheduler_type lr_scheduler_kwargs warmup_steps weight_decay "
        "max_grad_norm optim adam_beta1 adam_beta2 bf16 fp16 torch_compile use_cpu seed"
    ),
    "logs and checkpoints": (
        "output_dir run_name logging_steps report_to disable_tqdm health language log_completions "
        "completions_interval num_completions_to_print log_unique_prompts debug_mode debug_interval probe_prompts "
        "probe_steps eval_strategy eval_steps per_device_eval_batch_size save_strategy save_steps save_total_limit "
        "load_best_model_at_end metric_for_best_model resume_from_checkpoint push_to_hub hub_model_id"
    ),
}

NEEDED = {"tools and environments": "tools"}
"""Headings that only a recipe with a certain flag has: settings of episodes mean nothing without any."""
