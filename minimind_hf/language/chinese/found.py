# SPDX-License-Identifier: Apache-2.0
"""What the checks of `health/checks.py` find, what stops a run, and how a health message is put together."""

FOUND = {
    "in {logs} logs no completion got a reward: every reward function returned None for all of them": (
        "{logs} 次日志里没有一条回答得到 reward：所有奖励函数对所有回答都返回 None"
    ),
    "none of the completions whose prompt opens <think> contains </think>": (
        "prompt 开启了 <think> 的回答里，没有一条包含 </think>"
    ),
    "{share:.0%} of the completions whose prompt opens <think> contain </think>": (
        "prompt 开启了 <think> 的回答里，只有 {share:.0%} 包含 </think>"
    ),
    "every completion of the last {logs} logs got the reward {reward:.4g}": (
        "最近 {logs} 次日志里，每条回答的 reward 都是 {reward:.4g}"
    ),
    "the highest reward of the last {logs} logs is {highest:.3g}, and the mean is not rising": (
        "最近 {logs} 次日志里最高的 reward 是 {highest:.3g}，均值也没有上升"
    ),
    "after {logs} logs the mean reward is {end:.4g}; at the start it was {start:.4g}": (
        "{logs} 次日志之后，平均 reward 是 {end:.4g}，开始时是 {start:.4g}"
    ),
    "the mean reward over {logs} logs went from {best:.4g} to {now:.4g}": (
        "{logs} 次日志的平均 reward 从 {best:.4g} 降到了 {now:.4g}"
    ),
    "in {share:.0%} of the groups of the last {logs} logs all rewards are equal": (
        "最近 {logs} 次日志里，{share:.0%} 的组内所有 reward 都相等"
    ),
    "the reward is rising while kl_ref is {kl:.3g} (limit {limit:g})": (
        "reward 在上升，但 kl_ref 已经到了 {kl:.3g}（上限 {limit:g}）"
    ),
    "the reward is rising while {share:.0%} of the 4-grams of the completions repeat earlier ones": (
        "reward 在上升，但回答里 {share:.0%} 的 4-gram 是前文的重复"
    ),
    "the median kl_ref of the last {logs} logs is {kl:.3g} nats per token": (
        "最近 {logs} 次日志里 kl_ref 的中位数是每 token {kl:.3g} nat"
    ),
    "after {logs} logs the gradient has always been 0 and no token was clipped: the policy is where it started": (
        "{logs} 次日志以来梯度一直是 0，没有 token 被 clip：策略还在原地"
    ),
    "after {logs} logs kl_ref is {kl:.2g} and no token was clipped: the policy is where it started": (
        "{logs} 次日志之后 kl_ref 只有 {kl:.2g}，没有 token 被 clip：策略还在原地"
    ),
    "completions have {length:.1f} tokens on average; at the start they had {start:.1f}": (
        "回答平均只有 {length:.1f} 个 token，开始时有 {start:.1f} 个"
    ),
    "completions have {length:.1f} tokens on average, including the EOS": (
        "回答平均只有 {length:.1f} 个 token，EOS 也算在内"
    ),
    "{share:.0%} of the completions of the last {logs} logs were cut off before they ended": (
        "最近 {logs} 次日志里，{share:.0%} 的回答还没结束就被截断"
    ),
    "{share:.0%} of the 4-grams of the completions repeat earlier ones of the same completion": (
        "回答里 {share:.0%} 的 4-gram 在同一条回答的前文里出现过"
    ),
    "the entropy of the first {logs} logs is {entropy:.2g} nats per token: almost nothing is random": (
        "前 {logs} 次日志的熵是每 token {entropy:.2g} nat：采样几乎没有随机性"
    ),
    "the critic's explained variance is {explained:.2f} over the last {rollouts} rollouts, worse than a constant": (
        "最近 {rollouts} 次 rollout 里，critic 的 explained variance 是 {explained:.2f}，还不如一个常数"
    ),
    "critic_loss went from {start:.3g} to {end:.3g}, and the critic explains {explained:.0%} of the returns": (
        "critic_loss 从 {start:.3g} 变为 {end:.3g}，critic 只解释了 return 方差的 {explained:.0%}"
    ),
    "engine and trainer differ by a KL of {k3:.2g} nats per token on the same completions": (
        "对同样的回答，采样引擎和 trainer 的 KL 是每 token {k3:.2g} nat"
    ),
    "{share:.0%} of the calls of the last {logs} logs could not be read": (
        "最近 {logs} 次日志里，{share:.0%} 的工具调用无法解析"
    ),
    "{share:.0%} of the calls of the last {logs} logs could be read and failed ({kinds})": (
        "最近 {logs} 次日志里，{share:.0%} 的工具调用可以解析，但执行失败（{kinds}）"
    ),
    "{share:.0%} name a tool that does not exist": "{share:.0%} 调用了不存在的工具",
    "{share:.0%} have wrong arguments": "{share:.0%} 参数不对",
    "{share:.0%} raised an error": "{share:.0%} 抛出异常",
    "{share:.0%} took too long": "{share:.0%} 超时",
    "{share:.0%} of the episodes of the last {logs} logs were stopped at max_turns": (
        "最近 {logs} 次日志里，{share:.0%} 的 episode 到 max_turns 才被停下"
    ),
    "{share:.0%} of the tokens of the episodes of the last {logs} logs are answers of tools": (
        "最近 {logs} 次日志里，episode 的 token 有 {share:.0%} 是工具的返回"
    ),
    "the loss is {loss} in micro-batch {places}": "loss 是 {loss}，出现在 micro-batch {places}",
    "{number} of {count}{rows}": "{number}/{count}{rows}",
    " (rows {rows} of the train dataset)": "（训练集第 {rows} 行）",
    "the gradient's norm is {norm}{rows}": "梯度范数是 {norm}{rows}",
    "another process met a loss or gradient that is not finite": "另一个进程的 loss 或梯度不是有限值",
    "the update was not made": "这次更新没有执行",
    "there is no checkpoint in the output folder yet, see save_steps": "输出文件夹里还没有 checkpoint，见 save_steps",
    "the last good checkpoint is {checkpoint}": "最近一个完好的 checkpoint 是 {checkpoint}",
    "The run was interrupted at step {step}": "训练在第 {step} 步被中断",
    "--resume_from_checkpoint true goes on from it": "--resume_from_checkpoint true 会从它继续",
    "sampling/k3 of the completions is {k3:.3g} nats per token, above max_sampling_k3={limit:g}, so they were drawn "
    "from other weights than the trainer's": (
        "这批回答的 sampling/k3 是每 token {k3:.3g} nat，高于 max_sampling_k3={limit:g}：采样用的不是 trainer 的权重"
    ),
    "restart the server with the model that is trained, and see that it loads the weights it is sent "
    "(rollout_weight_sync, rollout_sync_dir)": (
        "用正在训练的模型重启服务器，并确认它加载了同步过去的权重（rollout_weight_sync、rollout_sync_dir）"
    ),
    "if engine and trainer may differ as much, raise max_sampling_k3 (None: no bound)": (
        "如果允许采样引擎和 trainer 相差这么多，调大 max_sampling_k3（None：不设上限）"
    ),
    "{title}: {found}. Try: {advice}.": "{title}：{found}。可以尝试：{advice}。",
    "step {step}: {message}": "第 {step} 步：{message}",
    "; or ": "；",
    "; ": "；",
    ", ": "，",
}
