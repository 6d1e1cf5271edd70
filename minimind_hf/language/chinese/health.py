# SPDX-License-Identifier: Apache-2.0
"""The rules of the health check in the order of `health/rules.py`: title, when it speaks, its meaning, what to try."""

RULES = {
    # not_finite
    "Loss or gradient is not finite": "loss 或梯度不是有限值",
    "the loss of a micro-batch or the gradient norm is NaN or infinite, before the update": (
        "更新之前，某个 micro-batch 的 loss 或者梯度范数是 NaN 或无穷大"
    ),
    "A single update of this kind destroys all weights. The run stops without making it; the weights in memory and "
    "the last checkpoint are still good.": (
        "这样的更新只要一次就会毁掉全部权重。训练在更新之前停止，内存里的权重和最近的 checkpoint 都还是好的。"
    ),
    "lower learning_rate": "调小 learning_rate",
    "use bf16 instead of fp16": "用 bf16 代替 fp16",
    "inspect the rows that the message names": "检查消息里指出的那几行数据",
    # reward_missing
    "No completion gets a reward": "没有回答得到 reward",
    "no completion of the first {few} logs got a reward, because every reward function returned None": (
        "前 {few} 次日志里没有一条回答得到 reward，因为所有奖励函数都返回 None"
    ),
    "A completion without a reward is left out. If all of them are, there is nothing to learn from.": (
        "没有 reward 的回答不参与训练。如果全部都没有，就没有东西可学。"
    ),
    "check the column that the reward compares with: rows without a reference get None": (
        "检查奖励函数用来比对的那一列：没有参考答案的行得到 None"
    ),
    "call the reward function by hand on one of the completions (log_completions=True)": (
        "手工用一条回答调用奖励函数试试（回答见 log_completions=True）"
    ),
    # thinking_missing
    "Completions do not close their thinking": "回答没有结束思考",
    "among the completions whose prompt opens `<think>`, none of {few} logs, or at most {thinking_closed:.0%} of "
    "{some} logs, contain `</think>`": (
        "prompt 开启了 `<think>` 的回答里，{few} 次日志中没有一条包含 `</think>`，"
        "或者 {some} 次日志中最多 {thinking_closed:.0%} 包含"
    ),
    "A reward that reads the answer after the thinking finds none, and other messages may follow from that.": (
        "如果 reward 要读思考之后的答案，就什么也读不到；别的消息可能也由此而来。"
    ),
    "set thinking_ratio=0 if the model was not trained to think": "如果模型没有学过思考，设 thinking_ratio=0",
    "reward it with the signals 'thinking' and 'format'": "用内置的 'thinking' 和 'format' 给它 reward",
    "raise max_completion_length if the thinking is cut off": "如果思考被截断，调大 max_completion_length",
    # reward_constant
    "The reward is constant": "reward 恒定不变",
    "every completion of {reward_is_constant_over} logs got the same reward, which is no higher than at the start": (
        "{reward_is_constant_over} 次日志里每条回答的 reward 都一样，而且不比开始时高"
    ),
    "If all rewards are equal, no completion is preferred and there is no gradient.": (
        "所有 reward 都相等时，没有哪条回答更好，也就没有梯度。"
    ),
    "print completions and rewards (debug_mode=True): the reward may not be given the right text or column": (
        "打印回答和 reward（debug_mode=True）：奖励函数拿到的文本或列可能不对"
    ),
    "make the reward finer: give partial credit for parts of an answer": "让 reward 更细：答对一部分也给一部分分",
    # reward_negative
    "All rewards are negative": "reward 全是负数",
    "every reward of {reward_negative_over} logs was below 0, and their mean is not rising": (
        "{reward_negative_over} 次日志里所有 reward 都小于 0，均值也没有上升"
    ),
    "Negative rewards do no harm by themselves, since only differences count. But if they do not rise, the policy may "
    "be unable to earn anything, or a reward model may be loaded incorrectly or use another scale than the other "
    "rewards.": (
        "负的 reward 本身无害，起作用的只是差值。但如果一直不上升，可能是策略怎么答都得不到分，"
        "也可能是奖励模型加载错了，或者它的尺度和其他 reward 不一致。"
    ),
    "look at individual rewards (log_completions=True)": "逐条看 reward（log_completions=True）",
    "check the path of the reward model, and its range against the other signals": (
        "检查奖励模型的路径，以及它的取值范围和其他 reward 是否相称"
    ),
    "start from a better model: do more supervised training": "从更好的模型出发：多做一些监督微调",
    # reward_flat
    "The reward does not move": "reward 没有变化",
    "after {reward_flat_over} logs, the means of the first and the last {reward_window} differ by no more than chance "
    "would explain": (
        "{reward_flat_over} 次日志之后，最初 {reward_window} 次和最近 {reward_window} 次的均值之差不超过随机波动"
    ),
    "The policy gets no signal that it can follow, or follows it too slowly for the change to show.": (
        "策略没有得到可以跟随的信号，或者跟得太慢，还看不出变化。"
    ),
    "raise learning_rate": "调大 learning_rate",
    "raise num_generations or the batch size, so that the signal rises above the noise": (
        "调大 num_generations 或 batch，让信号高过噪声"
    ),
    "use easier prompts: some completions must earn more than others": (
        "换更容易的 prompt：总要有一些回答比另一些得分高"
    ),
    # reward_fell
    "The reward has fallen": "reward 下降了",
    "the mean of the last {some} logs is below the best one by more than {significance:g} standard errors and by more "
    "than {reward_fall_share:g} of the reward's standard deviation at the start": (
        "最近 {some} 次日志的均值比最好时低，差距超过 {significance:g} 个标准误，"
        "也超过开始时 reward 标准差的 {reward_fall_share:g} 倍"
    ),
    "The policy has left the region where it earned its rewards, usually because its steps were too large.": (
        "策略离开了能得分的区域，通常是因为步子太大。"
    ),
    "go back to an earlier checkpoint": "回到更早的 checkpoint",
    "raise beta (GRPO) or kl_coef (PPO)": "调大 beta（GRPO）或 kl_coef（PPO）",
    # no_group_variance
    "Groups have no variance": "组内没有方差",
    "at least {groups_without_variance:.0%} of the groups of {some} logs have equal rewards, and the reward has not "
    "risen by {solved_share:.0%} of the distance from its start to the highest reward (a task that the run has solved "
    "may end like this)": (
        "{some} 次日志里至少 {groups_without_variance:.0%} 的组 reward 全部相等，而且 reward 的上升还不到"
        "起点与最高 reward 之间距离的 {solved_share:.0%}（任务已经学会时，最后也会是这样）"
    ),
    "GRPO learns from the differences between the completions of one prompt. Without any, their time is wasted.": (
        "GRPO 靠同一个 prompt 的各条回答之间的差别来学习。没有差别，这些回答就白生成了。"
    ),
    "use prompts of another difficulty if all of them are solved, or none": (
        "如果全都会做，或者全都不会做，换别的难度的 prompt"
    ),
    "raise temperature or num_generations if the completions of a group are alike": (
        "如果同组的回答都差不多，调高 temperature 或调大 num_generations"
    ),
    "use a finer reward": "用更细的 reward",
    # reward_hacking
    "The reward is being hacked": "出现 reward hacking",
    "the reward has risen, and either the median kl_ref of {some} logs is above {kl_to_reference:g} or the "
    "completions have begun to repeat themselves": (
        "reward 上升了，但 {some} 次日志里 kl_ref 的中位数高于 {kl_to_reference:g}，或者回答开始重复"
    ),
    "The policy has found text that scores well and is no longer language: the reward measures something other than "
    "what you want.": ("策略找到了得分高、却已经不像人话的文本：reward 衡量的不是你想要的东西。"),
    "read the completions (log_completions=True)": "读一读回答（log_completions=True）",
    "raise beta (GRPO) or kl_coef (PPO), which keep the policy near its start": (
        "调大 beta（GRPO）或 kl_coef（PPO），让策略不要离起点太远"
    ),
    "fix the reward: add what it lacks, such as the signal 'repetition'": (
        "修正 reward：补上它缺的部分，例如内置的 'repetition'"
    ),
    # kl_growing
    "The policy is drifting away from its reference": "策略正在偏离参考模型",
    "the median kl_ref of {some} logs is above {kl_to_reference:g} nats per token, and the reward has not risen in "
    "return": ("{some} 次日志里 kl_ref 的中位数高于每 token {kl_to_reference:g} nat，而 reward 并没有因此上升"),
    "The policy moves, but not towards higher rewards.": "策略在变，但没有变得得分更高。",
    # nothing_learned
    "Nothing is being learned": "什么都没学到",
    "after {still_policy_over} logs, kl_ref is below {still_policy_kl:g} (without a reference model: the gradient "
    "always was) and the clip fraction is 0": (
        "{still_policy_over} 次日志之后，kl_ref 低于 {still_policy_kl:g}（没有参考模型时：梯度一直低于它），"
        "clip 比例是 0"
    ),
    "The policy is still where it started.": "策略还在原地。",
    "check that the weights to train are not frozen, and that their precision can hold such a small update (float32 "
    "or mixed precision, not pure bfloat16)": (
        "检查要训练的权重没有被冻结，并且精度容得下这么小的更新（float32 或混合精度，不要纯 bfloat16）"
    ),
    # completions_short
    "Completions are very short": "回答太短",
    "the mean length of {few} logs is below {shrunk_tokens:g} tokens and below {shrunk_to:.0%} of that at the start, "
    "or at most {empty_tokens:g} tokens, which is little more than the EOS token": (
        "{few} 次日志的平均长度少于 {shrunk_tokens:g} 个 token 并且不到开始时的 {shrunk_to:.0%}，"
        "或者最多只有 {empty_tokens:g} 个 token，几乎只剩 EOS"
    ),
    "The policy stops at once: it was trained too little, or stopping early costs it less than trying.": (
        "策略一开口就结束：要么训练得太少，要么早早结束比认真作答更划算。"
    ),
    "reward length (the signal 'length')": "给长度加 reward（内置的 'length'）",
    "set loss_aggregation='token' or 'constant': 'sequence' favours short correct completions": (
        "设 loss_aggregation='token' 或 'constant'：'sequence' 偏向短的正确回答"
    ),
    "check the chat template, and that the EOS token is the model's": (
        "检查 chat template，以及 EOS token 是不是模型自己的"
    ),
    # completions_truncated
    "Completions do not end": "回答停不下来",
    "at least {truncated:.0%} of the completions of {some} logs were cut off at max_completion_length": (
        "{some} 次日志里至少 {truncated:.0%} 的回答在 max_completion_length 处被截断"
    ),
    "A completion that is cut off has no answer, so its reward says little, and it takes the longest time that a "
    "completion can take.": ("被截断的回答没有答案，它的 reward 说明不了什么，耗时却是最长的。"),
    "raise max_completion_length": "调大 max_completion_length",
    "set mask_truncated_completions=True to keep what was cut off out of the loss": (
        "设 mask_truncated_completions=True，被截断的回答不计入 loss"
    ),
    "check that the model knows its EOS token: it should have been trained on complete answers": (
        "检查模型是否会输出 EOS：它应该在完整的回答上训练过"
    ),
    # completions_repeating
    "Completions repeat themselves": "回答在重复自己",
    "at least {repeated:.0%} of the 4-grams of tokens of {some} logs occurred earlier in their completion": (
        "{some} 次日志里至少 {repeated:.0%} 的 token 4-gram 在同一条回答的前文里出现过"
    ),
    "The model is in a loop: the policy is too certain, or the model is too small for such long texts.": (
        "模型陷入了循环：策略过于确定，或者模型太小，写不了这么长的文本。"
    ),
    "add the signal 'repetition' (for Chinese 'repetition_cjk') to the rewards": (
        "在 reward 里加上内置的 'repetition'（中文用 'repetition_cjk'）"
    ),
    "raise temperature": "调高 temperature",
    "use shorter completions, or do more supervised training first": "缩短回答，或者先多做一些监督微调",
    # sampling_certain
    "Sampling is nearly deterministic": "采样几乎是确定的",
    "the mean entropy of the first {few} logs is below {certain_entropy:g} nats per token": (
        "前 {few} 次日志的平均熵低于每 token {certain_entropy:g} nat"
    ),
    "All completions of a prompt are nearly the same, so nothing new is ever tried.": (
        "同一个 prompt 的回答几乎都一样，等于从不尝试新东西。"
    ),
    "raise temperature (the default is 0.8)": "调高 temperature（默认 0.8）",
    "start from a checkpoint that is less certain": "从一个没那么确定的 checkpoint 开始",
    # critic_useless
    "The critic is worse than a constant": "critic 还不如一个常数",
    "the mean explained_variance of {critic_over} rollouts is below 0, not counting the first {some}": (
        "除去最初 {some} 次，{critic_over} 次 rollout 的平均 explained_variance 小于 0"
    ),
    "Its values add noise to the advantages instead of removing it.": (
        "它估计的 value 不但没有减少 advantage 里的噪声，反而增加了噪声。"
    ),
    "raise critic_learning_rate": "调大 critic_learning_rate",
    "scale the rewards to a size of about 1 (reward_weights): values start near 0": (
        "把 reward 缩放到 1 左右（reward_weights）：value 从 0 附近开始学"
    ),
    "use more completions per rollout, so that the critic sees more": "每次 rollout 多采几条回答，让 critic 看到更多",
    "start the critic from the policy's weights, or from a critic of an earlier run": (
        "用策略模型的权重，或者之前训练出的 critic，来初始化 critic"
    ),
    # critic_loss_not_falling
    "The critic does not learn": "critic 没有在学",
    "over {critic_over} logs, critic_loss is no lower than at the start and explained_variance is below "
    "{critic_explains:g}": (
        "{critic_over} 次日志里 critic_loss 不比开始时低，explained_variance 也低于 {critic_explains:g}"
    ),
    "The advantages are then hardly better than whitened rewards.": (
        "这时的 advantage 比标准化后的 reward 好不了多少。"
    ),
    "scale the rewards to a size of about 1 (reward_weights), or raise cliprange_value": (
        "把 reward 缩放到 1 左右（reward_weights），或者调大 cliprange_value"
    ),
    "use more completions per rollout": "每次 rollout 多采几条回答",
    # engine_mismatch
    "Engine and trainer disagree": "采样引擎和 trainer 不一致",
    "the mean sampling/k3 of {few} logs is above {engine_k3:g}": "{few} 次日志的平均 sampling/k3 高于 {engine_k3:g}",
    "The engine does not sample from the model that is being trained: the model has dropout, which only the update "
    "applies (the trainer warns of this before it starts), its weights are stale, or its precision, chat template or "
    "position encoding differs.": (
        "采样引擎用的不是正在训练的模型：可能模型有 dropout，而只有更新时才生效（trainer 开始前会警告）；"
        "可能权重是旧的；也可能精度、chat template 或位置编码不同。"
    ),
    "set disable_dropout=True if the model or its adapters (lora_dropout) have dropout": (
        "如果模型或 adapter（lora_dropout）有 dropout，设 disable_dropout=True"
    ),
    "sync the weights before every rollout (sync_every=1)": "每次 rollout 之前都同步权重（sync_every=1）",
    "use the same precision for engine and trainer (rollout_dtype, the server's dtype)": (
        "采样引擎和 trainer 用同样的精度（rollout_dtype，以及服务器的 dtype）"
    ),
    "set rollout_correction='truncate'": "设 rollout_correction='truncate'",
    # calls_unparsed
    "Calls of tools cannot be read": "工具调用无法解析",
    "at least {calls_failed:.0%} of the calls of {some} logs do not have the form that the chat template teaches": (
        "{some} 次日志里至少 {calls_failed:.0%} 的工具调用不符合 chat template 规定的格式"
    ),
    "The policy tries to use its tools and does not know how to write a call; each attempt costs a turn.": (
        "策略想用工具，却不会写调用；每试一次就浪费一轮。"
    ),
    "read the calls (debug_mode=True): they may be cut off by max_turn_length": (
        "看看这些调用（debug_mode=True）：可能被 max_turn_length 截断了"
    ),
    "train on examples of calls first, in the form of this chat template": (
        "先用符合这个 chat template 的调用样例做监督微调"
    ),
    "take a little from the reward for a call that cannot be read": "调用无法解析时，从 reward 里扣一点",
    # tools_failing
    "Tools fail": "工具执行失败",
    "at least {calls_failed:.0%} of the calls of {some} logs can be read, but name no tool, have wrong arguments, "
    "raise an error or take too long": (
        "{some} 次日志里至少 {calls_failed:.0%} 的调用可以解析，但工具不存在、参数不对、抛出异常或者超时"
    ),
    "An error says little that helps with the task, so the policy learns to do without the tool.": (
        "报错信息对完成任务没什么帮助，策略会学着不用工具。"
    ),
    "where calls raise or take too long: call the tool by hand with the arguments of such a call, and raise "
    "tool_timeout if it is only slow": ("抛出异常或超时的：用同样的参数手工调用一次；如果只是慢，调大 tool_timeout"),
    "where names or arguments are wrong: describe the tools better in their docstrings, or in the prompt": (
        "工具名或参数不对的：在 docstring 或 prompt 里把工具描述得更清楚"
    ),
    # episodes_endless
    "Episodes do not end": "episode 停不下来",
    "at least {at_max_turns:.0%} of the episodes of {some} logs were stopped at max_turns": (
        "{some} 次日志里至少 {at_max_turns:.0%} 的 episode 到 max_turns 才被停下"
    ),
    "The policy keeps calling tools and never answers, so its reward says little.": (
        "策略不停地调用工具，从不作答，它的 reward 说明不了什么。"
    ),
    "raise max_turns": "调大 max_turns",
    "set turn_discount below 1 (GRPO) or gamma (PPO), so that an early answer is worth more": (
        "把 turn_discount（GRPO）或 gamma（PPO）设得小于 1，让早作答更值"
    ),
    "reward an answer, or take a little for each turn": "作答就给 reward，或者每一轮扣一点",
    # observations_crowding
    "Answers of tools crowd out the policy": "工具的返回挤占了策略的位置",
    "at least {observed:.0%} of the tokens of the episodes of {some} logs are answers of tools or of an environment": (
        "{some} 次日志里，episode 的 token 至少有 {observed:.0%} 是工具或环境的返回"
    ),
    "Answers count in max_completion_length and are computed in every update, but nothing is learned from them.": (
        "工具的返回算在 max_completion_length 里，每次更新都要计算，却不产生学习信号。"
    ),
    "lower max_observation_length, or make the tools' answers shorter": (
        "调小 max_observation_length，或者让工具的返回更短"
    ),
    "raise max_completion_length if episodes are cut off": "如果 episode 被截断，调大 max_completion_length",
}
