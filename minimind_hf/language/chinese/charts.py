# SPDX-License-Identifier: Apache-2.0
"""The charts of a page: titles, what to look for, axes, points, and what those are told who do not see them."""

CHARTS = {
    "Reward": "Reward",
    "Should rise.": "应当上升。",
    "The band is one standard deviation to either side.": "色带是上下各一个标准差。",
    "Parts of the reward": "reward 的组成",
    "Each reward function times its weight; together they are the reward.": (
        "每个奖励函数乘以权重，加起来就是 reward。"
    ),
    "Held-out prompts": "留出的 prompt",
    "Evaluations on prompts that are not trained on, one line per reward function.": (
        "在不参与训练的 prompt 上评测，每个奖励函数一条线。"
    ),
    "Signals": "各个奖励函数",
    "One line per reward function, before its weight. One that rises as another falls may do so at its expense.": (
        "每个奖励函数一条线，没有乘权重。一个上升、另一个下降，可能是两者在互相牵制。"
    ),
    "Divergence from the teacher": "与教师模型的 divergence",
    "Should fall: the loss of a distillation, per token.": "应当下降：蒸馏的 loss，按 token 平均。",
    "KL to the reference": "与参考模型的 KL",
    "Steady growth beyond 0.1 means the policy is drifting away.": "超过 0.1 还一直涨，说明策略正在跑偏。",
    "nats": "nat",
    "Length of completions": "回答长度",
    "A sudden rise or fall often means length itself is being rewarded.": (
        "突然变长或变短，往往说明 reward 奖励的就是长度本身。"
    ),
    "tokens": "token 数",
    "Rewards of turns": "每轮的 reward",
    "Of the first turns, over the episodes that have them.": "最初几轮，在有这些轮的 episode 上取平均。",
    "Turns and calls": "轮数与工具调用",
    "Turns of the policy, and calls of tools, per episode.": "每个 episode 的轮数和工具调用次数。",
    "Shares of episodes": "episode 的各种比例",
    "Calls that failed, and that could not be read; episodes stopped at max_turns; tokens that are answers.": (
        "失败的调用和无法解析的调用；到 max_turns 被停下的 episode；工具返回占的 token。"
    ),
    "Shares": "各种比例",
    "clipped_ratio: completions that were cut off. frac_reward_zero_std: groups that teach nothing.": (
        "clipped_ratio：被截断的回答。frac_reward_zero_std：学不到东西的组。"
    ),
    "Clip fraction": "clip 比例",
    "Always 0, with no KL: nothing is learned. Far above 0.2: steps are too large.": (
        "一直是 0，KL 也没有：什么都没学到。远高于 0.2：步子太大。"
    ),
    "Policy moved since sampling": "采样之后策略的变化",
    "How stale the rollouts are by the time they are trained on.": "rollout 用来训练时已经旧了多少。",
    "Entropy": "熵",
    "Exploration ends when it reaches 0.": "降到 0，就不再探索。",
    "Entropy bonus": "熵奖励",
    "Weight of the bonus.": "熵奖励的权重。",
    "Engine and trainer": "采样引擎与 trainer",
    "How far the engine's log-probabilities are from the trainer's: 0, up to rounding.": (
        "采样引擎和 trainer 的 log-probability 相差多少：除了舍入误差应当是 0。"
    ),
    "Weights that correct the engine": "校正采样引擎的权重",
    "Far from 1: the engine samples from another policy.": "离 1 很远：采样引擎用的是另一个策略。",
    "Age of rollouts": "rollout 的新旧",
    "Updates since their weights.": "采样所用的权重之后又更新了几次。",
    "updates": "更新次数",
    "Share of prompts in the servers' caches": "prompt 命中服务器缓存的比例",
    "Prompts": "prompt",
    "Shares: groups put aside because they teach nothing; prompts that are solved, or hopeless.": (
        "比例：学不到东西而被搁置的组；已经会做的 prompt 和做不出来的 prompt。"
    ),
    "Prompts drawn and put aside": "抽取和搁置的 prompt",
    "Per rollout of one process.": "单个进程每次 rollout。",
    "Training and held-out loss": "训练 loss 与留出 loss",
    "Should fall. Held-out loss that rises again: the rows are learned by heart.": (
        "应当下降。留出 loss 又升上去，说明模型在死记训练数据。"
    ),
    "Token accuracy": "token 正确率",
    "Share of the tokens that the model thought the most likely.": "模型认为最可能的 token 正好就是原文的比例。",
    "Pairs in the right order": "排序正确的偏好对",
    "Share of the pairs whose chosen answer has the higher reward; chance is 0.5.": (
        "chosen 的 reward 更高的偏好对所占比例；随机是 0.5。"
    ),
    "Margin": "margin",
    "By how much the reward of the chosen answer is higher.": "chosen 的 reward 高出多少。",
    "Rewards of the pairs": "偏好对的 reward",
    "Of DPO: how much more likely than at the start the answers have become, times beta.": (
        "DPO 的 reward：回答的 log-probability 比开始时高多少，再乘 beta。"
    ),
    "Rewards of the batch": "一批数据的 reward",
    "Of both answers of each pair.": "每个偏好对的两个回答都算在内。",
    "Log-probabilities of the pairs": "偏好对的 log-probability",
    "Summed over the answer. Both fall fast: the model forgets the answers instead of choosing between them.": (
        "对整个回答求和。两条都快速下降：模型不是在两者之间选择，而是两个回答都在忘。"
    ),
    "Router loss": "路由 loss",
    "The auxiliary loss of a mixture of experts.": "混合专家模型的辅助 loss。",
    "Entropy of the next token": "下一个 token 的熵",
    "Learning rate": "学习率",
    "Loss": "Loss",
    "Says little by itself: the data change with the policy.": "单看说明不了什么：数据随策略而变。",
    "Gradient norm": "梯度范数",
    "Spikes often come before a collapse: lower the learning rate.": "崩溃之前常有尖峰：调小学习率。",
    "Critic: loss": "critic 的 loss",
    "Should fall.": "应当下降。",
    "Critic: explained variance": "critic 的 explained variance",
    "1 is perfect; below 0 is worse than a constant.": "1 最好；小于 0 还不如一个常数。",
    "Critic: values and returns": "critic 的 value 与 return",
    "Values should approach the returns.": "value 应当接近 return。",
    "Time per step": "每步耗时",
    "Where an optimizer step spends its time.": "一个优化步的时间花在哪里。",
    "seconds": "秒",
    "Rate": "速度",
    "Completion tokens per second of the whole run, not only of sampling.": (
        "整个训练（不只是采样）每秒生成的回答 token 数。"
    ),
    "tokens / s": "token / 秒",
    "Speculation": "投机解码",
    "Tokens that a row draws per pass, 1 without drafts; and the share of drafts that was drawn.": (
        "每次前向一行采出的 token 数，没有草稿时是 1；以及草稿被采中的比例。"
    ),
    "A custom metric.": "自定义指标。",
    "Rewards of completions": "回答的 reward",
    "Lengths of completions": "回答的长度",
    "reward": "reward",
    "At the chosen step; the outline is the first log.": "所选那一步的分布；线框是第一次日志。",
    "optimizer step": "优化步",
    "completions sampled": "采样的回答数",
    "tokens sampled": "采样的 token 数",
    "tokens trained on": "训练用的 token 数",
    "seconds of training": "训练时间（秒）",
    "minutes of training": "训练时间（分钟）",
    "hours of training": "训练时间（小时）",
    "{title}: {label}": "{title}：{label}",
    "{group}, mean of {count}": "{group}，{count} 次的平均",
    "Bands are 95 % intervals over runs.": "色带是各次训练之间的 95 % 置信区间。",
    "Points are means of neighbouring logs.": "每个点是相邻几次日志的平均。",
    "Highest: {highest} at step {step}, which is cut.": "最高：第 {step} 步的 {highest}，超出坐标轴。",
    "Highest: {highest} at step {step}, one of {count} that are cut.": (
        "最高：第 {step} 步的 {highest}，共有 {count} 处超出坐标轴。"
    ),
    "{title}: {lines}.": "{title}：{lines}。",
    "{label} from {first} to {last}": "{label} 从 {first} 到 {last}",
    "{label} from {first} to {last}, highest {top}": "{label} 从 {first} 到 {last}，最高 {top}",
    "{title}: from {first} at step {start}, to {last} at step {end}.": (
        "{title}：第 {start} 步是 {first}，第 {end} 步是 {last}。"
    ),
    "{low} to {high}": "{low} 到 {high}",
    "{value}, smoothed {smooth}": "{value}，平滑后 {smooth}",
    "{value}, 95 % interval {low} to {high}": "{value}，95 % 置信区间 {low} 到 {high}",
    "{share} % of the run": "训练全程的 {share} %",
    "off": "关",
    "value": "值",
}
