# SPDX-License-Identifier: Apache-2.0
"""The page of a run, apart from its charts: headings, tables, completions, and numbers as people write them."""

PAGE = {
    # numbers and times
    "{count} d": "{count} 天",
    "{count} h": "{count} 小时",
    "{count} min": "{count} 分",
    "{count} s": "{count} 秒",
    "{now.day} {now:%B} {now.year}, {now:%H:%M}": "{now.year} 年 {now.month} 月 {now.day} 日 {now:%H:%M}",
    "{count} optimizer step": "{count} 个优化步",
    "{count} optimizer steps": "{count} 个优化步",
    "{count} token": "{count} 个 token",
    "{count} tokens": "{count} 个 token",
    "{count} turn": "{count} 轮",
    "{count} turns": "{count} 轮",
    "{count} call": "{count} 次工具调用",
    "{count} calls": "{count} 次工具调用",
    "{count} core": "{count} 核",
    "{count} cores": "{count} 核",
    "{count} thread": "{count} 线程",
    "{count} threads": "{count} 线程",
    "{count} seed": "{count} 个随机种子",
    "{count} seeds": "{count} 个随机种子",
    ".": "。",
    ": ": "：",
    # the top of the page
    "{count} runs compared": "{count} 次训练的对比",
    "written {date}": "生成于 {date}",
    "{time} in rollouts, scoring, updates and evaluations": "rollout、打分、更新和评测共 {time}",
    "{time} in updates and evaluations": "更新和评测共 {time}",
    "The run ended at step {step} with {type}: {message}": "训练在第 {step} 步因 {type} 结束：{message}",
    "The run ended at step {step} with {type}.": "训练在第 {step} 步因 {type} 结束。",
    "The run was interrupted at step {step} (Ctrl-C).": "训练在第 {step} 步被中断（Ctrl-C）。",
    "model": "模型",
    "started": "开始于",
    "machine": "机器",
    "versions": "版本",
    "command line": "命令行",
    "{count} parameters": "{count} 参数",
    ", {count} of them trained": "，其中 {count} 参与训练",
    "held-out reward": "留出 reward",
    "held-out accuracy": "留出正确率",
    "loss": "loss",
    "held-out loss": "留出 loss",
    "token accuracy": "token 正确率",
    "held-out token accuracy": "留出 token 正确率",
    "pairs in the right order": "排序正确的偏好对",
    "held-out pairs in the right order": "留出数据里排序正确的偏好对",
    "margin": "margin",
    "tokens per completion": "每条回答的 token 数",
    "explained variance": "explained variance",
    "tokens per second": "每秒 token 数",
    "before {value}": "训练前 {value}",
    "at the start {value}": "开始时 {value}",
    "per step": "每步",
    "{time} in all": "共 {time}",
    # several runs
    "Results": "结果",
    "Of runs that differ only in their seeds, the mean with its 95 % interval over runs (Student's t); of a single "
    "run, with that over its held-out prompts. Values at the end are means over the last tenth of the logs.": (
        "只有随机种子不同的多次训练，给出均值和它们之间的 95 % 置信区间（Student t）；"
        "单次训练的区间按留出的 prompt 计算。结束时的数值是最后十分之一日志的平均。"
    ),
    "run": "训练",
    "runs": "次数",
    "runs that are shown": "显示哪些训练",
    "reward at the end": "结束时的 reward",
    "loss at the end": "结束时的 loss",
    "held-out {name}": "留出 {name}",
    "held-out accuracy before": "训练前的留出正确率",
    "held-out accuracy after": "训练后的留出正确率",
    "time": "时间",
    "steps": "步数",
    "completions": "回答数",
    "What differs": "不同的设置",
    "setting": "设置",
    "{name}, in its own folder": "{name}（在各自的文件夹里）",
    "{count} settings that not every algorithm has": "{count} 个并非所有算法都有的设置",
    # health
    "Health": "健康检查",
    "The health checks found nothing.": "健康检查没有发现问题。",
    "Only {steps} logged: most checks have no data yet (the first need {needed}).": (
        "只记录了 {steps}：多数检查还没有数据（最早的需要 {needed} 步）。"
    ),
    "step": "步",
    "rule": "规则",
    "what is wrong, and what to try": "哪里不对，可以尝试什么",
    # curves
    "Curves": "曲线",
    "How all charts are drawn": "所有图表的画法",
    "horizontal axis": "横轴",
    "smoothing": "平滑",
    "Point at a line for its values, drag to zoom in, double-click to go back; a name above hides and "
    "shows its line.": ("鼠标指向曲线可以看数值，拖动放大，双击还原；点上方的名字可以隐藏或显示对应的线。"),
    "More curves": "更多曲线",
    "{count} measures that were 0 in every log": "{count} 个指标在所有日志里都是 0",
    # probe prompts
    "Probe prompts": "固定 prompt 上的回答变化",
    "The same prompts with the same random numbers at every step, so that what differs is what was learned:": (
        "每一步都用同样的 prompt 和同样的随机数，所以差别就是学到的东西："
    ),
    "words that the answer before did not have": "上一次回答里没有的词",
    "{count} of {total} rounds.": "共 {total} 轮，显示 {count} 轮。",
    "prompt": "prompt",
    "start": "开始",
    "step {step}": "第 {step} 步",
    "the same answer": "回答不变",
    # completions
    "Completions, early and late": "最初和最后的回答",
    "Episodes, early and late": "最初和最后的 episode",
    "The lowest rewards first, then the two highest of the rollout.": (
        "先是 reward 最低的几个，最后是这次 rollout 里最高的两个。"
    ),
    "What the policy wrote": "策略写的内容",
    "is trained on;": "参与训练；",
    "what it read": "它读到的内容",
    "is not: prompts, answers of tools and environments, and what the chat template writes around them.": (
        "不参与：prompt、工具和环境的返回，以及 chat template 在它们前后加的内容。"
    ),
    "The two columns have different prompts: those of the first and of the last rollout.": (
        "左右两列的 prompt 不同：分别来自第一次和最后一次 rollout。"
    ),
    "Early, step {step}": "最初，第 {step} 步",
    "Late, step {step}": "最后，第 {step} 步",
    "No completions were kept: the folder contains no samples/*.jsonl.": (
        "没有保存回答：文件夹里没有 samples/*.jsonl。"
    ),
    "reward {reward}": "reward {reward}",
    "reward {reward} ({signals})": "reward {reward}（{signals}）",
    "cut off": "被截断",
    "turn {number}": "第 {number} 轮",
    "{calls}, failed: {kinds}": "{calls}，失败：{kinds}",
    "stopped at max_turns": "到 max_turns 被停下",
    "token for token": "逐 token",
    # token by token
    "Token by token": "逐 token 查看",
    "Completions of some rollouts with the lowest and the highest advantages, with the numbers that the update "
    "computed last.": "几次 rollout 里 advantage 最低和最高的回答，数值取自更新时最后一次计算这些回答的结果。",
    "Completions of some rollouts with the lowest and the highest rewards, with the numbers that the update "
    "computed last.": "几次 rollout 里 reward 最低和最高的回答，数值取自更新时最后一次计算这些回答的结果。",
    "Completions of some rollouts, with the numbers that the update computed last.": (
        "几次 rollout 里的一些回答，数值取自更新时最后一次计算这些回答的结果。"
    ),
    "Point at a token for all its numbers.": "鼠标指向 token 可以看它的全部数值。",
    "divergence from the teacher": "与教师模型的 divergence",
    "completion": "回答",
    "what shades the tokens": "按什么着色",
    "log-probability": "log-probability",
    "ratio to the sampling policy": "与采样策略的 ratio",
    "advantage": "advantage",
    "value of the critic": "critic 的 value",
    "return": "return",
    "token {number}: {facts}": "第 {number} 个 token：{facts}",
    "not the policy's": "不是策略写的",
    "The update did not compute this completion: it had nothing to teach.": ("更新没有计算这条回答：从它学不到东西。"),
    # all completions
    "All completions": "全部回答",
    "Completions that were kept": "保存的回答",
    "Only the samples that every run keeps: with log_completions, every completion of a run is found here.": (
        "这里只有默认保存的样例；打开 log_completions 后，可以查看每一条回答。"
    ),
    "{count:,} completions of {some} of the {logs} logs, evenly over the run; all of them are in "
    "completions/*.jsonl.": (
        "共 {logs} 次日志，均匀选取其中 {some} 次的 {count:,} 条回答；全部回答在 completions/*.jsonl 里。"
    ),
    "All {count:,} completions that were logged.": "日志里的全部 {count:,} 条回答。",
    "words in prompt or completion": "搜索 prompt 或回答里的文字",
    "every step": "所有步",
    "every run": "所有训练",
    "order": "顺序",
    "in the order of sampling": "按采样顺序",
    "highest reward first": "reward 从高到低",
    "lowest reward first": "reward 从低到高",
    "longest first": "从长到短",
    "shortest first": "从短到长",
    "more": "更多",
    "{shown} of {found} found": "找到 {found} 条，显示 {shown} 条",
    # settings
    "Settings": "设置",
    "Given by the user; the others are at their defaults, or follow from these.": (
        "用户给出的设置；其余的是默认值，或者由它们推出。"
    ),
    "{count} settings": "{count} 个设置",
    "{count} other settings": "其余 {count} 个设置",
    # a browser that cannot
    "This could not be shown: {why}": "无法显示：{why}",
    "this browser cannot unpack them; use a Chrome, Firefox or Safari of 2023 or later": (
        "这个浏览器无法解压数据，请用 2023 年以后的 Chrome、Firefox 或 Safari"
    ),
}
