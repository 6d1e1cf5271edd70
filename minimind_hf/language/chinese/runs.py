# SPDX-License-Identifier: Apache-2.0
"""The lines of a run on the terminal."""

RUNS = {
    "report: {path}": "报告：{path}",
    "model: {path}": "模型：{path}",
    "completions: {path}": "回答：{path}",
    "next: {command}": "下一步：{command}",
    "{folder}, a few of the first and of the last step (all: log_completions)": (
        "{folder}，只有第一步和最后一步的几条（要全部保存：log_completions）"
    ),
    "not saved yet; trainer.save_model() writes it to {folder}": (
        "还没有保存；trainer.save_model() 会把它写到 {folder}"
    ),
    "training": "训练",
    "evaluation": "评测",
    "step {step}/{steps}: {measured}, {time} left": "第 {step}/{steps} 步：{measured}，剩余 {time}",
    "step {step}, evaluation: {measured}": "第 {step} 步，评测：{measured}",
    "step {step}, evaluation of {name}: {measured}": "第 {step} 步，评测 {name}：{measured}",
    "held-out accuracy before {training}: {accuracy:.1%}": "{training}之前的留出正确率：{accuracy:.1%}",
    "held-out accuracy after {training}: {accuracy:.1%}": "{training}之后的留出正确率：{accuracy:.1%}",
    "reinforcement learning": "强化学习",
    "distillation": "蒸馏",
    "training the teacher in {folder} with recipes/grpo.py": "用 recipes/grpo.py 训练教师模型：{folder}",
    "held-out accuracy of the teacher: {accuracy:.1%}": "教师模型的留出正确率：{accuracy:.1%}",
    "no reward was logged (see logging_steps), so there is no reward curve": (
        "日志里没有 reward（见 logging_steps），所以没有 reward 曲线"
    ),
    "explained variance of the critic, mean of the last {count} rollouts: {mean:.2f}": (
        "critic 的 explained variance，最后 {count} 次 rollout 的平均值：{mean:.2f}"
    ),
    "learning from {count} worked examples first, in at most {steps} steps": (
        "先用 {count} 条样例做监督训练，最多 {steps} 步"
    ),
    "supervised step {step}: {share:.0%} of sampled answers are right": (
        "监督微调第 {step} 步：采样的回答有 {share:.0%} 是对的"
    ),
    "supervised step {step}: {share:.0%} of the episodes go as the worked ones": (
        "监督微调第 {step} 步：{share:.0%} 的 episode 和示范一致"
    ),
    "The chat template ends turns with '{end}', the tokenizer's EOS is '{eos}': the saved generation config stops at "
    "both ({ids})": "chat template 用 '{end}' 结束一轮，tokenizer 的 EOS 是 '{eos}'：保存的 generation config 遇到"
    "任何一个都停（{ids}）",
    "{cut} of the {rows} rows of {source} are longer than {limit} tokens and are left out (drop_longer)": (
        "{source} 的 {rows} 行里有 {cut} 行超过 {limit} 个 token，已去掉（drop_longer）"
    ),
    "{cut} of the {rows} rows of {source} are longer than {limit} tokens and are cut (max_length): what comes after "
    "is not learned, nor that an answer ends. Raise --max_length, or leave them out with --drop_longer true": (
        "{source} 的 {rows} 行里有 {cut} 行超过 {limit} 个 token，会被截断（max_length）：后面的内容学不到，也学不到"
        "回答在哪里结束。请调大 --max_length，或者用 --drop_longer true 去掉这些行"
    ),
    "{dropped} of the {rows} rows of the {name} are dropped: {limit} leaves nothing to learn in them": (
        "{name} 的 {rows} 行里有 {dropped} 行被丢弃：{limit} 使这些行里没有可学的内容"
    ),
    "wrote {path}": "已写入 {path}",
    "{time} wrote {path}": "{time} 已写入 {path}",
    "open {path}; it is written again every {seconds} s while its runs go on. Ctrl-C ends this.": (
        "请打开 {path}；训练进行中，每 {seconds} 秒更新一次。按 Ctrl-C 结束。"
    ),
}
