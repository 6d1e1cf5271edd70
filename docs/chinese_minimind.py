# SPDX-License-Identifier: Apache-2.0
"""The Chinese of the tables in docs/zh/migrate-from-minimind.md: cells by their English."""

import re

_FLAGS = re.compile(r"(`[^`]*`(, )?)*")

CELLS = {
    "(none)": "（无）",
    "a folder, or a hub name": "文件夹，或者 Hub 上的名字",
    "in the folder's `config.json`": "在文件夹的 `config.json` 里",
    "one folder per run: model, tokenizer, card, report, checkpoints": (
        "每次训练一个文件夹：模型、tokenizer、模型卡、报告、checkpoint"
    ),
    "the same jsonl; parquet, csv, folders and hub names too": (
        "同样的 jsonl；也可以是 parquet、csv、文件夹和 Hub 上的名字"
    ),
    "or `--max_steps`": "或者 `--max_steps`",
    "counts completions, as in trl: GRPO's 2 prompts x 6 are 12": (
        "按回答数计，和 trl 一样：GRPO 的 2 个 prompt x 6 就是 12"
    ),
    "exact: 2 x 6 is the same step as 1 x 12. With PPO, mini-batches per step": (
        "精确：2 x 6 与 1 x 12 是同样的一步。PPO：每步的 mini-batch 数"
    ),
    "cosine down to a tenth, as in MiniMind": "按余弦降到十分之一，和 MiniMind 一样",
    "with PPO policy and critic separately, as in MiniMind": "PPO 时策略模型和 critic 分别裁剪，和 MiniMind 一样",
    "longer prompts keep their last tokens, or are dropped with `--overlong_prompts drop`": (
        "更长的 prompt 保留最后一段，加 `--overlong_prompts drop` 则丢弃"
    ),
    "0 keeps no reference in memory": "0 表示不在内存里保留参考模型",
    "`cispo`, `grpo`, and trl's `dr_grpo`, `dapo`, `bnpo`, `luspo`, `sapo`, `vespo`": (
        "`cispo`、`grpo`，以及 trl 的 `dr_grpo`、`dapo`、`bnpo`、`luspo`、`sapo`、`vespo`"
    ),
    "with cispo the same cap, 5.0; with grpo trl's upper clip `1 + epsilon_high`": (
        "cispo：同样的上限 5.0；grpo：trl 的 clip 上界 `1 + epsilon_high`"
    ),
    "a function of (seed, epoch, row): resumed runs open thinking for the same prompts": (
        "是（seed, epoch, row）的函数：恢复训练后，开启思考的是同样的 prompt"
    ),
    "a sequence classifier, or one with `get_score` and `--trust_remote_code true`. The rules have names: "
    "`--reward_funcs length thinking format repetition`": (
        "序列分类器，或者带 `get_score` 的模型，加 `--trust_remote_code true`。规则 reward 有名字："
        "`--reward_funcs length thinking format repetition`"
    ),
    "a rollout must be a whole number of steps": "一次 rollout 必须是整数步",
    "see below": "见下文",
    "`--bf16 true` or `--fp16 true`": "`--bf16 true` 或 `--fp16 true`",
    "float32 by default": "默认 float32",
    "the first GPU if there is one; `--use_cpu` for none; several with `accelerate launch`": (
        "有 GPU 就用第一块；`--use_cpu` 不用 GPU；多块用 `accelerate launch`"
    ),
    "prompts are rendered in the training process, when they are rolled out": "prompt 在训练进程里、rollout 时才渲染",
    "bit for bit on a CPU; MiniMind's `_resume.pth` files cannot be read": (
        "CPU 上逐位一致；不能读 MiniMind 的 `_resume.pth` 文件"
    ),
    "any tracker of transformers: wandb, trackio, swanlab, tensorboard": (
        "transformers 支持的任何 tracker：wandb、trackio、swanlab、tensorboard"
    ),
    "`--log_completions` also writes them to files": "`--log_completions` 还会写进文件",
    "`ratio_mean` and `approx_kl` are logged at every step": "每一步都记录 `ratio_mean` 和 `approx_kl`",
    "`torch` decodes on packed weights and computes each prompt once": (
        "`torch` 用打包的权重解码，每个 prompt 只算一次"
    ),
    "one or several servers, see [rollout-engines.md](rollout-engines.md)": (
        "一个或多个服务器，见 [rollout-engines.md](../rollout-engines.md)"
    ),
    "synced before every rollout unless `--sync_every` says otherwise": (
        "每次 rollout 之前同步，除非 `--sync_every` 另有规定"
    ),
    "prompts and completions travel as token ids: the server does not need our tokenizer": (
        "prompt 和回答以 token id 传输：服务器不需要我们的 tokenizer"
    ),
    # train_agent.py
    "tokens of one turn, as in MiniMind": "一轮的 token 数，和 MiniMind 一样",
    "MiniMind counts the prompt, too, and cuts the beginning of what is longer; here the episode ends": (
        "MiniMind 连 prompt 一起算，超长时切掉开头；这里是 episode 结束"
    ),
    "counts episodes: 2 prompts x 4 are 8": "按 episode 计：2 个 prompt x 4 就是 8",
    "4": "4",
    "0.1; decided per prompt, not per episode, so a group is one task": (
        "0.1；按 prompt 而不是按 episode 决定，所以一组是同一个任务"
    ),
    "judges episodes without calls only: `--judge_only_without_calls`": (
        "只给没有工具调用的 episode 打分：`--judge_only_without_calls`"
    ),
    "(in the code) 3 turns": "（写在代码里）3 轮",
    "(in the code) six tools": "（写在代码里）六个工具",
    "functions of yours, or `--environment`": "你自己的函数，或者 `--environment`",
    "(in the code) one second per call": "（写在代码里）每次调用一秒",
    "30 seconds by default": "默认 30 秒",
    "(in the code) 2048 characters of an answer": "（写在代码里）返回内容 2048 个字符",
    "in tokens, and with a mark where it is cut": "按 token 计，截断处有标记",
    # scripts before RL
    "counts rows; of preferences, pairs": "按行计；偏好数据按对计",
    "tokens of a row; `--drop_longer true` leaves longer rows out": (
        "一行的 token 数；`--drop_longer true` 丢掉更长的行"
    ),
    "for MiniMind's cosine add `--lr_scheduler_type cosine`": (
        "要用 MiniMind 的余弦调度，加 `--lr_scheduler_type cosine`"
    ),
    "rows are encoded before training, so 0 is enough": "数据在训练之前编码好，0 就够了",
    "of train_dpo.py": "train_dpo.py 的参数",
}


def in_chinese(cell: str) -> str:
    """The Chinese of a cell; one of flags alone as it is.

    Raises:
        KeyError: If it has words and no Chinese.
    """
    return cell if _FLAGS.fullmatch(cell) else CELLS[cell]
