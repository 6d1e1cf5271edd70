# SPDX-License-Identifier: Apache-2.0
"""The flags of MiniMind's training scripts, each with what it is here.

docs/migrate-from-minimind.md shows these tables, and a recipe that is given such a flag answers with its row.
"""

from typing import NamedTuple


class Row(NamedTuple):
    """One row of a table.

    Args:
        theirs (`str`): Flags of MiniMind, or what is in its code, as Markdown.
        ours (`str`): What it is here; `(none)` if there is no such flag.
        remark (`str`): What differs.
    """

    theirs: str
    ours: str
    remark: str = ""


NONE = "(none)"
RL = (
    Row("`--from_weight`", "`--model_name_or_path FOLDER`", "a folder, or a hub name"),
    Row("`--hidden_size`, `--num_hidden_layers`, `--use_moe`", NONE, "in the folder's `config.json`"),
    Row(
        "`--save_dir`, `--save_weight`",
        "`--output_dir`",
        "one folder per run: model, tokenizer, card, report, checkpoints",
    ),
    Row("`--data_path`", "`--dataset_name`", "the same jsonl; parquet, csv, folders and hub names too"),
    Row("`--epochs`", "`--num_train_epochs`", "or `--max_steps`"),
    Row(
        "`--batch_size`",
        "`--per_device_train_batch_size`",
        "counts completions, as in trl: GRPO's 2 prompts x 6 are 12",
    ),
    Row(
        "`--accumulation_steps`",
        "`--gradient_accumulation_steps`",
        "exact: 2 x 6 is the same step as 1 x 12. With PPO, mini-batches per step",
    ),
    Row("`--learning_rate`", "`--learning_rate`", "cosine down to a tenth, as in MiniMind"),
    Row("`--critic_learning_rate`", "`--critic_learning_rate`"),
    Row("`--grad_clip`", "`--max_grad_norm`", "with PPO policy and critic separately, as in MiniMind"),
    Row(
        "`--max_seq_len`",
        "`--max_prompt_length`",
        "longer prompts keep their last tokens, or are dropped with `--overlong_prompts drop`",
    ),
    Row("`--max_gen_len`", "`--max_completion_length`"),
    Row("`--num_generations`", "`--num_generations`"),
    Row("`--beta`", "`--beta`", "0 keeps no reference in memory"),
    Row(
        "`--loss_type`",
        "`--loss_type`",
        "`cispo`, `grpo`, and trl's `dr_grpo`, `dapo`, `bnpo`, `luspo`, `sapo`, `vespo`",
    ),
    Row("`--epsilon`", "`--epsilon`"),
    Row(
        "`--epsilon_high`",
        "`--epsilon_high`",
        "with cispo the same cap, 5.0; with grpo trl's upper clip `1 + epsilon_high`",
    ),
    Row(
        "`--thinking_ratio`",
        "`--thinking_ratio`",
        "a function of (seed, epoch, row): resumed runs open thinking for the same prompts",
    ),
    Row(
        "`--reward_model_path`",
        "`--reward_model_name_or_path`",
        "a sequence classifier, or one with `get_score` and `--trust_remote_code true`. The rules have names: "
        "`--reward_funcs length thinking format repetition`",
    ),
    Row("`--clip_epsilon`", "`--clip_epsilon`"),
    Row("`--vf_coef`", "`--vf_coef`"),
    Row("`--kl_coef`", "`--kl_coef`"),
    Row("`--gamma`, `--lam`", "`--gamma`, `--lam`"),
    Row("`--cliprange_value`", "`--cliprange_value`"),
    Row("`--ppo_update_iters`", "`--ppo_update_iters`"),
    Row("`--mini_batch_size`", "`--mini_batch_size`", "a rollout must be a whole number of steps"),
    Row("`--early_stop_kl`", "`--early_stop_kl`", "see below"),
    Row("`--dtype`", "`--bf16 true` or `--fp16 true`", "float32 by default"),
    Row(
        "`--device`",
        NONE,
        "the first GPU if there is one; `--use_cpu` for none; several with `accelerate launch`",
    ),
    Row("`--num_workers`", NONE, "prompts are rendered in the training process, when they are rolled out"),
    Row("`--log_interval`", "`--logging_steps`"),
    Row("`--save_interval`", "`--save_steps`"),
    Row(
        "`--from_resume`",
        "`--resume_from_checkpoint FOLDER`",
        "bit for bit on a CPU; MiniMind's `_resume.pth` files cannot be read",
    ),
    Row(
        "`--use_wandb`, `--wandb_project`",
        "`--report_to`, `--run_name`",
        "any tracker of transformers: wandb, trackio, swanlab, tensorboard",
    ),
    Row("`--use_compile`", "`--torch_compile`"),
    Row(
        "`--debug_mode`, `--debug_interval`",
        "`--debug_mode`, `--debug_interval`",
        "`--log_completions` also writes them to files",
    ),
    Row("`--debug_log_ratio`", NONE, "`ratio_mean` and `approx_kl` are logged at every step"),
    Row(
        "`--rollout_engine`",
        "`--rollout_engine`",
        "`torch` decodes on packed weights and computes each prompt once",
    ),
    Row(
        "`--sglang_base_url`",
        "`--sglang_base_url`",
        "one or several servers, see [rollout-engines.md](rollout-engines.md)",
    ),
    Row(
        "`--sglang_shared_path`",
        "`--rollout_sync_dir`",
        "synced before every rollout unless `--sync_every` says otherwise",
    ),
    Row(
        "`--sglang_model_path`",
        NONE,
        "prompts and completions travel as token ids: the server does not need our tokenizer",
    ),
)
"""Of train_grpo.py and train_ppo.py."""

AGENT = (
    Row("`--max_gen_len`", "`--max_turn_length`", "tokens of one turn, as in MiniMind"),
    Row(
        "`--max_total_len`",
        "`--max_completion_length`",
        "MiniMind counts the prompt, too, and cuts the beginning of what is longer; here the episode ends",
    ),
    Row("`--max_seq_len`", "`--max_prompt_length`"),
    Row("`--batch_size`", "`--per_device_train_batch_size`", "counts episodes: 2 prompts x 4 are 8"),
    Row("`--num_generations`", "`--num_generations`", "4"),
    Row(
        "`--thinking_ratio`",
        "`--thinking_ratio`",
        "0.1; decided per prompt, not per episode, so a group is one task",
    ),
    Row("`--data_path`", "`--dataset_name`"),
    Row(
        "`--reward_model_path`",
        "`--reward_model_name_or_path`",
        "judges episodes without calls only: `--judge_only_without_calls`",
    ),
    Row("(in the code) 3 turns", "`--max_turns`"),
    Row("(in the code) six tools", "`--tools`", "functions of yours, or `--environment`"),
    Row("(in the code) one second per call", "`--tool_timeout`", "30 seconds by default"),
    Row(
        "(in the code) 2048 characters of an answer",
        "`--max_observation_length`",
        "in tokens, and with a mark where it is cut",
    ),
)
"""Of train_agent.py, where it differs from train_grpo.py."""

BEFORE_RL = (
    Row("`--batch_size`", "`--per_device_train_batch_size`", "counts rows; of preferences, pairs"),
    Row("`--max_seq_len`", "`--max_length`", "tokens of a row; `--drop_longer true` leaves longer rows out"),
    Row("`--learning_rate`", "`--learning_rate`", "for MiniMind's cosine add `--lr_scheduler_type cosine`"),
    Row("`--accumulation_steps`", "`--gradient_accumulation_steps`"),
    Row("`--grad_clip`", "`--max_grad_norm`"),
    Row(
        "`--num_workers`",
        "`--dataloader_num_workers`",
        "rows are encoded before training, so 0 is enough",
    ),
    Row("`--beta`", "`--beta`", "of train_dpo.py"),
)
"""Of train_pretrain.py, train_full_sft.py and train_dpo.py, where they differ from train_grpo.py."""

_FIRST = {"agent": AGENT, "sft": BEFORE_RL, "dpo": BEFORE_RL, "reward": BEFORE_RL}  # tables to look into first


def what_minimind_calls(name: str, recipe: str) -> str | None:
    """What a flag of MiniMind's is here, in a sentence; `None` if MiniMind has no such flag.

    Args:
        name (`str`): The flag, without dashes.
        recipe (`str`): Name of the recipe that it was given to.
    """
    for row in (*_FIRST.get(recipe, ()), *RL):
        if f"`--{name}`" in row.theirs and f"`--{name}`" not in row.ours:  # which would be no answer
            remark = f" ({_plain(row.remark)})" if row.remark else ""
            if row.ours == NONE:
                return f"It has no counterpart here: {_plain(row.remark)}."
            return f"Here it is {_plain(row.ours)}{remark}."
    return None


def _plain(markdown: str) -> str:
    text, _, page = markdown.replace("`", "").partition("[")
    return text + page.partition("]")[0]
