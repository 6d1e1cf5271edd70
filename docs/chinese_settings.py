# SPDX-License-Identifier: Apache-2.0
"""The Chinese of docs/zh/settings.md: helps of our fields by their English, of transformers' by their names.

tests/docs/test_chinese_pages.py finds the fields that have none, and helps that no field has any more. The English of
transformers changes from version to version, so it is no key.
"""

HEADINGS = {
    "model": "模型",
    "adapters": "adapter",
    "data": "数据",
    "rewards": "reward",
    "tools and environments": "工具与环境",
    "rollout": "rollout",
    "loss": "loss",
    "batch": "batch",
    "optimization": "优化",
    "logs and checkpoints": "日志与 checkpoint",
}

OURS = {
    # model
    "Run code that comes with a model or tokenizer.": "运行模型或 tokenizer 自带的代码。",
    "Arguments of AutoModelForCausalLM.from_pretrained when the model is given by its name.": (
        "用名字指定模型时，传给 AutoModelForCausalLM.from_pretrained 的参数。"
    ),
    "The teacher: a name or folder of a model, or of an adapter. An adapter on the base of a student that has "
    "adapters itself shares that base.": (
        "教师模型：模型或 adapter 的名字或文件夹。如果学生也用 adapter，两个 adapter 又在同一个底座上，就共用底座。"
    ),
    "Arguments of AutoModelForCausalLM.from_pretrained for the teacher, such as its dtype.": (
        "加载教师模型时传给 AutoModelForCausalLM.from_pretrained 的参数，例如 dtype。"
    ),
    "Set every dropout of policy and reference to 0.": "把策略模型和参考模型的所有 dropout 设为 0。",
    "Set every dropout of student and teacher to 0.": "把学生和教师模型的所有 dropout 设为 0。",
    "Weight of a mixture-of-experts router's balancing loss. Unset: the model's own; 0: off.": (
        "MoE router 负载均衡 loss 的权重。不设：用模型自己的；0：关闭。"
    ),
    "Critic to start from: a model, or the critic folder of an earlier run. Unset: the policy's weights.": (
        "critic 的起点：一个模型，或者之前训练留下的 critic 文件夹。不设：用策略模型的权重。"
    ),
    "With adapters, the critic is one more adapter on the policy's frozen base; False: a separate model.": (
        "用 adapter 训练时，critic 是策略模型冻结底座上的另一个 adapter；False：单独的模型。"
    ),
    "Keep the critic beside the policy in the run's folder and on the Hub; checkpoints always hold it.": (
        "在输出文件夹和 Hub 上，把 critic 和策略模型放在一起；checkpoint 里总是有它。"
    ),
    "Where adapters are trained, also save the model with them merged, into the folder's `merged`.": (
        "训练 adapter 时，另外保存一份合并后的模型，放在文件夹的 `merged` 里。"
    ),
    # data
    "A new random order of prompts each epoch; of a stream, by 1,000 rows.": (
        "每个 epoch 重新打乱 prompt；数据流每 1,000 行打乱一次。"
    ),
    "Prompts longer than this many tokens are overlong. Unset: no limit.": (
        "超过这么多 token 的 prompt 算过长。不设：不限。"
    ),
    "'truncate' keeps the last tokens of an overlong prompt, 'drop' skips the prompt.": (
        "'truncate' 保留过长 prompt 的最后一段，'drop' 跳过这个 prompt。"
    ),
    "Probability that a prompt's chat template opens a thinking block.": (
        "渲染 prompt 时 chat template 开启思考的概率。"
    ),
    "Probability that a conversation without a system prompt gets one at random.": (
        "给没有 system prompt 的对话随机加上一个的概率。"
    ),
    "Further arguments of the tokenizer's chat template.": "传给 tokenizer 的 chat template 的其他参数。",
    # rewards
    "One weight per reward function. Unset: all 1.": "每个奖励函数一个权重。不设：都是 1。",
    # tools and environments
    "Turns of the policy after which an episode ends. Unset: when a turn has no call, or no room is left.": (
        "策略走多少轮后 episode 结束。不设：某一轮没有调用，或者没有空间时结束。"
    ),
    "trl's name for max_turns - 1: rounds of tool calls in an episode.": (
        "max_turns - 1 在 trl 里的名字：一个 episode 里工具调用的轮数。"
    ),
    "Tokens after which one turn is cut, which ends the episode. Unset: only max_completion_length does.": (
        "一轮超过多少 token 就截断，episode 随之结束。不设：只有 max_completion_length 起作用。"
    ),
    "Tokens after which a tool's answer is cut, with a visible mark. Unset: no limit.": (
        "工具的返回超过多少 token 就截断，并留下看得见的标记。不设：不限。"
    ),
    "Threads that run tools and environments beside the decoding.": "解码的同时运行工具和环境的线程数。",
    "Seconds after which a call of a tool is given up; the policy is told that it took too long.": (
        "工具调用超过多少秒就放弃；策略会读到超时。"
    ),
    "GRPO: factor per turn of rewards that come later (PPO discounts tokens, by gamma).": (
        "GRPO：后面的 reward 每轮打的折扣（PPO 用 gamma 按 token 打折）。"
    ),
    # rollout
    "Completions per prompt (G).": "每个 prompt 的回答数（G）。",
    "Completions per prompt.": "每个 prompt 的回答数。",
    "Completions per prompt in evaluation. Unset: num_generations.": (
        "评测时每个 prompt 的回答数。不设：num_generations。"
    ),
    "Tokens after which a completion is cut; with the prompt they must fit into the model's context.": (
        "回答超过多少 token 就截断；加上 prompt 必须放得进模型的上下文。"
    ),
    "Sampling temperature; log-probabilities are scored at it too.": "采样温度；log-probability 也按这个温度计算。",
    "Draw from this many of the likeliest tokens, and score over them. 0: from all.": (
        "只从概率最大的这么多个 token 里采样，也只在它们上计分。0：全部 token。"
    ),
    "Draw from the fewest of the likeliest tokens that have this probability together, and score over them.": (
        "从概率之和达到这个值的最少的 token 里采样，也只在它们上计分。"
    ),
    "Draw from tokens with at least this share of the likeliest one's probability, and score over them.": (
        "只从概率不低于最大概率这个比例的 token 里采样，也只在它们上计分。"
    ),
    "Only 1.0: see the error for why.": "只能是 1.0：原因见报错。",
    "Settings of rollouts by the names of transformers' GenerationConfig; they win over the fields.": (
        "用 transformers 的 GenerationConfig 里的名字设置 rollout；优先于各个字段。"
    ),
    "What draws the completions: 'torch' decodes in this process, 'sglang' asks servers that you run.": (
        "由什么来采样：'torch' 在本进程里解码，'sglang' 请求你启动的服务器。"
    ),
    "Completions that the torch engine decodes at a time.": "torch 引擎同时解码的回答数。",
    "'float32' or 'bfloat16' for the torch engine to decode in; the ratio absorbs the difference. Unset: bfloat16 "
    "with bf16=True, otherwise the model's own.": (
        "torch 引擎解码用的精度，'float32' 或 'bfloat16'；差异由 ratio 吸收。不设：bf16=True 时用 bfloat16，否则用"
        "模型自己的。"
    ),
    "'fast' decodes MiniMind-, Qwen- and Llama-shaped models on packed weights, 'graph' replays the model's own "
    "forward as CUDA graphs (an error where they do not fit), 'general' calls it token by token. 'auto': 'fast' "
    "on a CPU and 'graph' on CUDA where they fit, otherwise 'general'.": (
        "'fast' 用打包的权重解码 MiniMind、Qwen 和 Llama 这类结构，'graph' 把模型的前向录成 CUDA graph 重放（不适"
        "用就报错），'general' 逐 token 调用模型。'auto'：适用时 CPU 上用 'fast'、CUDA 上用 'graph'，否则用 "
        "'general'。"
    ),
    "'self' guesses what a completion says next from its prompt, its siblings and earlier epochs, and the torch "
    "engine decodes several tokens at once where that pays. The same tokens are drawn. Unset: off.": (
        "'self' 根据 prompt、同组的回答和之前的 epoch 猜测接下来的内容，划算时 torch 引擎一次解码多个 token。采样"
        "出的 token 不变。不设：关闭。"
    ),
    "Compare fast paths of rollout and update with the plain ones on the run's own tokens, and take the plain "
    "ones if they differ: 'first' at the first rollout on another device than a CPU, 'always' at every rollout "
    "and on CPUs, 'off' never.": (
        "用训练自己的 token 比较 rollout 和更新的快速路径与普通路径，不一致就改走普通路径：'first' 在 CPU 以外的设"
        "备上、第一次 rollout 时比较，'always' 每次 rollout 都比较，CPU 上也比较，'off' 从不比较。"
    ),
    "Share of the prompts whose completions the student draws; the others take the data's own answers, or with "
    "seq_kd the teacher's.": "由学生自己采样回答的 prompt 比例；其余的用数据里的答案，设了 seq_kd 则用教师的回答。",
    "The completions that the student does not draw are drawn by the teacher.": "不由学生采样的回答由教师来采样。",
    "Another name of max_completion_length, as in trl's GKD.": (
        "max_completion_length 的另一个名字，和 trl 的 GKD 一样。"
    ),
    "The SGLang servers, such as http://localhost:30000; each gets a share of the prompts. Keys come from the "
    "environment: SGLANG_API_KEY, SGLANG_ADMIN_API_KEY.": (
        "SGLang 服务器，例如 http://localhost:30000；每个分到一部分 prompt。密钥来自环境变量：SGLANG_API_KEY、"
        "SGLANG_ADMIN_API_KEY。"
    ),
    "Seconds to wait for a server that fails or does not answer, before a checkpoint is saved and the run ends.": (
        "服务器出错或没有响应时等待的秒数；之后保存 checkpoint，训练结束。"
    ),
    "How servers get weights: by a folder they can see ('disk'), or broadcast to them ('distributed').": (
        "服务器怎样拿到权重：通过它们看得到的文件夹（'disk'），或者广播给它们（'distributed'）。"
    ),
    "Folder of 'disk', for this run alone, which servers see under the same path; /dev/shm/NAME spares the disk. "
    "Unset: OUTPUT_DIR/_rollout_weights.": (
        "'disk' 用的文件夹，只供这次训练使用，服务器要能在同样的路径看到；/dev/shm/NAME 不占磁盘。不设："
        "OUTPUT_DIR/_rollout_weights。"
    ),
    "For a server on the trainer's own GPU: it gives up its weights and its cache during the update, and gets "
    "them back with the next weights. Start it with --enable-memory-saver.": (
        "服务器和 trainer 在同一块 GPU 上时用：更新期间它释放权重和缓存，随下一次权重同步恢复。启动它时加 "
        "--enable-memory-saver。"
    ),
    "Rollouts from one set of weights. Above 1, servers are sent weights less often and sample from older ones.": (
        "同一份权重采样多少次 rollout。大于 1 时，同步得少一些，服务器用的权重旧一些。"
    ),
    "For engines that sample from another distribution: 'truncate' weighs each token by trainer / engine, at most "
    "rollout_correction_cap; 'mask' leaves tokens above it out; both take the ratio against the trainer.": (
        "用于采样分布不同的引擎：'truncate' 给每个 token 乘上 trainer / engine 的权重，最大 rollout_correction_cap；"
        "'mask' 去掉超过它的 token；两者的 ratio 都相对于 trainer。"
    ),
    "Largest weight of rollout_correction.": "rollout_correction 的最大权重。",
    "Stop before an update on completions whose mean sampling/k3 is above this many nats per token: the engine "
    "draws from other weights. Unset: never.": (
        "回答的平均 sampling/k3 超过每 token 这么多 nat 时，在更新之前停止：引擎用的不是 trainer 的权重。不设：从不。"
    ),
    "Put groups whose rewards are all equal aside, since they teach nothing, and draw further prompts in their "
    "place (the filter of DAPO). The objective becomes that of the prompts that are neither solved nor hopeless; "
    "evaluation stays on all.": (
        "reward 全部相等的组学不到东西，把它们搁置，另外抽取 prompt 补上（DAPO 的过滤）。优化目标变成既没学会、也"
        "不是做不出来的 prompt；评测仍在全部 prompt 上。"
    ),
    "Most further prompts that one process draws for a rollout. When they are used up, groups that were put aside "
    "fill the rest. Unset: three times those of a rollout.": (
        "一个进程每次 rollout 最多另外抽取多少个 prompt。用完之后，由搁置的组补足。不设：一次 rollout 的三倍。"
    ),
    "Remember how often each prompt was solved, and draw solved and hopeless prompts more rarely.": (
        "记住每个 prompt 的成功率，学会了的和做不出来的少抽一些。"
    ),
    "Least probability with which prompt_memory keeps a prompt whose turn it is.": (
        "轮到一个 prompt 时，prompt_memory 保留它的最小概率。"
    ),
    "Reward above which a completion has solved its prompt, for prompt_memory.": (
        "reward 超过多少，就算回答解出了 prompt；供 prompt_memory 使用。"
    ),
    # loss
    "'cispo' (clipped, detached importance weight) or 'grpo' (clipped objective); 'dr_grpo', 'dapo', 'bnpo' and "
    "'luspo' are grpo with another loss_aggregation; 'sapo' and 'vespo' weigh smoothly in place of a clip. Or the "
    "import path of your own, 'file.py:function'.": (
        "'cispo'（截断并 detach 的重要性权重）或 'grpo'（截断的目标）；'dr_grpo'、'dapo'、'bnpo' 和 'luspo' 是换了"
        " loss_aggregation 的 grpo；'sapo' 和 'vespo' 用平滑的权重代替截断。也可以是自己的 import 路径，"
        "'file.py:function'。"
    ),
    "Weight of the KL penalty to the reference. 0: no reference model is kept.": (
        "与参考模型的 KL 惩罚的权重。0：不保留参考模型。"
    ),
    "Which divergence: 1 is the reverse KL, KL(student || teacher); 0 the forward KL; in between the generalised "
    "Jensen-Shannon divergence.": (
        "用哪种 divergence：1 是反向 KL，KL(student || teacher)；0 是正向 KL；中间是广义 Jensen-Shannon divergence。"
    ),
    "Divides the logits of both in the divergence. Unset: temperature; in trl's GKD it is 1.": (
        "计算 divergence 时两边的 logits 都除以它。不设：等于 temperature；在 trl 的 GKD 里是 1。"
    ),
    "Clip range of the grpo ratio: 1 - epsilon to 1 + epsilon.": (
        "grpo 的 ratio 的 clip 范围：1 - epsilon 到 1 + epsilon。"
    ),
    "cispo: absolute cap of the ratio (unset: 5.0). grpo: upper clip 1 + epsilon_high (unset: epsilon).": (
        "cispo：ratio 的绝对上限（不设：5.0）。grpo：clip 上界 1 + epsilon_high（不设：epsilon）。"
    ),
    "grpo: bound of the ratio where the advantage is negative; above 1 + epsilon_high. Unset: none.": (
        "grpo：advantage 为负时 ratio 的上限；要大于 1 + epsilon_high。不设：没有上限。"
    ),
    "How completions of a prompt are compared. 'group': with their mean and std (GRPO); 'rloo': with the mean of "
    "the others; 'reinforce_baseline': with their mean, whitened over the batch. Or the import path of your own, "
    "'file.py:function'.": (
        "同一个 prompt 的回答怎样比较。'group'：用均值和标准差（GRPO）；'rloo'：与其余回答的均值比；"
        "'reinforce_baseline'：与均值比，再在整个 batch 上标准化。也可以是自己的 import 路径，'file.py:function'。"
    ),
    "Divide advantages by the std of the 'group', the 'batch', or 'none'. Unset: 'group'.": (
        "advantage 除以哪里的标准差：'group'、'batch'，或者 'none'（不除）。不设：'group'。"
    ),
    "'sum_then_normalize': advantages of the weighted sum of the rewards; 'normalize_then_sum': each reward is "
    "normalized in its group first (GDPO).": (
        "'sum_then_normalize'：按 reward 的加权和算 advantage；'normalize_then_sum'：先在组内分别标准化每个 reward"
        "（GDPO）。"
    ),
    "Passes over each rollout (mu in the GRPO paper).": "每次 rollout 更新几遍（GRPO 论文里的 mu）。",
    "'token': a ratio for each token; 'sequence': one for each completion (GSPO); 'sequence_token': the same "
    "value, with each token's own gradient (GSPO-token).": (
        "'token'：每个 token 一个 ratio；'sequence'：每条回答一个（GSPO）；'sequence_token'：值与后者相同，但用每"
        "个 token 自己的梯度（GSPO-token）。"
    ),
    "'sequence': mean over tokens, then sequences; 'token': over all tokens; 'constant': fixed length; "
    "'local_token': over the tokens of each micro-batch; 'sequence_sum': sum over tokens, mean over sequences. "
    "Unset: that of the loss_type, 'sequence' for cispo.": (
        "'sequence'：先对 token、再对序列取平均；'token'：对所有 token 取平均；'constant'：除以固定长度；"
        "'local_token'：在每个 micro-batch 的 token 上取平均；'sequence_sum'：token 求和、序列取平均。不设：由 "
        "loss_type 决定，cispo 是 'sequence'。"
    ),
    "'token': mean over all tokens; 'sequence': over tokens, then sequences; 'constant': fixed length.": (
        "'token'：对所有 token 取平均；'sequence'：先对 token、再对序列取平均；'constant'：除以固定长度。"
    ),
    "Leave completions that were cut out of the loss.": "被截断的回答不计入 loss。",
    "Share of the tokens, those of highest entropy in a micro-batch, that the policy's term sees.": (
        "策略项只看 micro-batch 里熵最高的这部分 token。"
    ),
    "Weight of the mean entropy of the tokens, which is added to the objective.": "加到目标里的 token 平均熵的权重。",
    "Move entropy_coef after each step: up where the entropy is at most entropy_target, else down. The bonus is "
    "given only in the first case.": (
        "每步之后调整 entropy_coef：熵不高于 entropy_target 就调大，否则调小。只有前一种情况才给熵奖励。"
    ),
    "The least that use_adaptive_entropy moves entropy_coef to.": (
        "use_adaptive_entropy 把 entropy_coef 调到的最小值。"
    ),
    "The most that use_adaptive_entropy moves entropy_coef to.": "use_adaptive_entropy 把 entropy_coef 调到的最大值。",
    "How far use_adaptive_entropy moves entropy_coef in a step.": "use_adaptive_entropy 每步把 entropy_coef 调多少。",
    "Mean entropy per token, in nats, that use_adaptive_entropy aims at. Start near that of the first steps.": (
        "use_adaptive_entropy 的目标：每个 token 的平均熵，单位 nat。从最初几步的熵附近开始设。"
    ),
    "Multiply the KL penalty of a token by its ratio.": "token 的 KL 惩罚乘以它的 ratio。",
    "Drop completions of negative advantage whose mean old - new log-probability is above this. Unset: none.": (
        "advantage 为负、且平均 old - new log-probability 高于它的回答不参与训练。不设：都参与。"
    ),
    "sapo: how fast the gate closes where the advantage is above 0.": "sapo：advantage 大于 0 时，门关闭的快慢。",
    "sapo: the same for all other tokens.": "sapo：其余 token 的快慢。",
    "vespo: power of the completion's ratio where the advantage is at least 0.": (
        "vespo：advantage 不小于 0 时，回答的 ratio 的指数。"
    ),
    "vespo: decay with that ratio where the advantage is at least 0.": (
        "vespo：advantage 不小于 0 时，随该 ratio 的衰减。"
    ),
    "vespo: power of the completion's ratio where the advantage is below 0.": (
        "vespo：advantage 小于 0 时，回答的 ratio 的指数。"
    ),
    "vespo: decay with that ratio where the advantage is below 0.": "vespo：advantage 小于 0 时，随该 ratio 的衰减。",
    "Let the reference follow the policy.": "让参考模型跟随策略模型。",
    "Share of the policy's weights in each update of the reference.": "每次更新参考模型时，策略模型权重所占的比例。",
    "Steps between two such updates.": "两次这样的更新相隔的步数。",
    "Clip range of the ratio: 1 - clip_epsilon to 1 + clip_epsilon.": (
        "ratio 的 clip 范围：1 - clip_epsilon 到 1 + clip_epsilon。"
    ),
    "Skip the rest of a rollout's updates once approx_kl is above this. Unset: never.": (
        "approx_kl 超过它，就跳过这次 rollout 剩下的更新。不设：从不。"
    ),
    "Passes over each rollout.": "每次 rollout 更新几遍。",
    "Discount of later rewards.": "后面的 reward 的折扣。",
    "GAE: weight of the longer returns.": "GAE：更长的 return 的权重。",
    "Weight of the value loss.": "value loss 的权重。",
    "How far a value may move from that at sampling before its gradient stops.": (
        "value 离采样时的值多远之后，不再有梯度。"
    ),
    # batch
    "Completions per process and micro-batch (2 prompts x 6).": (
        "每个进程每个 micro-batch 的回答数（2 个 prompt x 6）。"
    ),
    "Completions per process and rollout (x steps_per_generation).": (
        "每个进程每次 rollout 的回答数（x steps_per_generation）。"
    ),
    "Completions per process and micro-batch.": "每个进程每个 micro-batch 的回答数。",
    "Completions per process and micro-batch of the update.": "更新时每个进程每个 micro-batch 的回答数。",
    "Completions per rollout over all processes; an alternative to steps_per_generation.": (
        "所有进程一次 rollout 的回答数；可以代替 steps_per_generation。"
    ),
    "Micro-batches that one rollout fills. Unset: gradient_accumulation_steps.": (
        "一次 rollout 填满几个 micro-batch。不设：gradient_accumulation_steps。"
    ),
    "Compute at most this many tokens at a time (a prompt counted once), in the update and wherever completions "
    "are scored: micro-batches are split into parts, balanced by length. The result is the same; give it a large "
    "per_device_train_batch_size. Unset: no split; but GRPO on one CPU process computes a group at a time where "
    "several exceed 1024 tokens, which costs no time there.": (
        "更新和给回答计分时，一次最多计算这么多 token（prompt 只算一次）：micro-batch 按长度均衡地分成几部分。结果"
        "不变；请配一个大的 per_device_train_batch_size。不设：不分；但单进程 CPU 上的 GRPO，几个组合起来超过 "
        "1024 个 token 时一次算一个组，这样并不更慢。"
    ),
    "'shared_prompt' computes each prompt once for its completions; 'padded' is the plain layout, for models that "
    "cannot and for comparison. Both give the same numbers.": (
        "'shared_prompt' 每个 prompt 只算一次，供它的所有回答使用；'padded' 是普通布局，用于不支持前者的模型，也用"
        "于对照。两者数值相同。"
    ),
    # optimization
    "'trl': trl's own defaults (dapo, beta 0, learning rate 1e-6, temperature 1, no thinking, ...) for settings "
    "that are not given. 'minimind': those here, without a message to users of trl.": (
        "'trl'：没有给出的设置用 trl 的默认值（dapo、beta 0、学习率 1e-6、温度 1、不思考等）。'minimind'：用这里的"
        "默认值，并且不给 trl 的用户显示提示。"
    ),
    "Peak learning rate. RL takes 10 to 1000 times less than supervised training.": (
        "学习率峰值。RL 比监督训练小 10 到 1000 倍。"
    ),
    "Peak learning rate. Every token teaches, so more than in RL.": "学习率峰值。每个 token 都有信号，所以比 RL 大。",
    "Peak learning rate of the critic; same schedule as the policy's.": (
        "critic 的学习率峰值；调度方式和策略模型相同。"
    ),
    "Schedule; the default falls as a cosine to a tenth.": "学习率调度；默认按余弦降到十分之一。",
    "Arguments of the schedule; unset, cosine_with_min_lr gets min_lr_rate 0.1.": (
        "调度的参数；不设时，cosine_with_min_lr 用 min_lr_rate 0.1。"
    ),
    # logs and checkpoints
    "Steps between two logs.": "两次日志相隔的步数。",
    "Say in one line what seems to go wrong and what to try; stop before an update that is not finite.": (
        "用一行话说哪里可能不对、可以尝试什么；更新不是有限值时，在它之前停止。"
    ),
    "What health messages, progress, last lines and report.html are written in: 'en', 'zh', or 'auto' for Chinese "
    "where the locale is (LC_ALL, LC_MESSAGES, LANG). Errors stay English.": (
        "健康消息、进度、最后几行和 report.html 的语言：'en'、'zh'，或者 'auto'：locale（LC_ALL、LC_MESSAGES、LANG）"
        "是中文时用中文。错误信息始终是英文。"
    ),
    "At each log, write completions to OUTPUT_DIR/completions as jsonl, and send them to those trackers of "
    "report_to that have tables (wandb, trackio, swanlab). Every completions_interval steps, print a table.": (
        "每次日志都把回答以 jsonl 写进 OUTPUT_DIR/completions，并发给 report_to 里支持表格的 tracker（wandb、"
        "trackio、swanlab）。每 completions_interval 步打印一个表格。"
    ),
    "Steps between two tables of completions on the terminal.": "终端上两个回答表格相隔的步数。",
    "Rows of that table. Unset: all.": "表格的行数。不设：全部。",
    "One row per prompt in that table.": "表格里每个 prompt 只显示一行。",
    "Print prompts with all their completions and rewards every debug_interval steps, at the next rollout.": (
        "每 debug_interval 步，在下一次 rollout 时打印 prompt 和它的全部回答与 reward。"
    ),
    "Steps between two debug prints.": "两次调试打印相隔的步数。",
    "So many prompts, the first of eval_dataset or else of train_dataset, are answered at the start, every "
    "probe_steps steps and at the end, always with the same random numbers; the report shows the answers.": (
        "取 eval_dataset（没有就取 train_dataset）的前这么多个 prompt，在开始时、每 probe_steps 步和结束时回答，每"
        "次都用同样的随机数；回答显示在报告里。"
    ),
    "Optimizer steps between two answers to the probe prompts.": "两次回答这些固定 prompt 相隔的优化步数。",
    # other settings of transformers, with a meaning of their own here
    "Off: it waits for the device at every micro-batch, and a loss that is not finite ends the run.": (
        "关闭：它会让每个 micro-batch 都等待设备，而 loss 不是有限值时训练本来就会停止。"
    ),
    "Leave off: every column of the dataset travels to the reward functions.": (
        "保持关闭：数据集的每一列都要传给奖励函数。"
    ),
}

OF_TRANSFORMERS = {
    "activation_checkpointing": "开启 activation checkpointing，用计算换内存：省内存，训练慢约 20%。",
    "gradient_accumulation_steps": (
        "累积多少个 micro-batch 的梯度再更新一次。有效 batch = per_device_train_batch_size * 设备数 * "
        "gradient_accumulation_steps。"
    ),
    "num_train_epochs": "训练多少个 epoch。",
    "max_steps": (
        "优先于 `num_train_epochs`。设为正数时，就是训练的总步数。训练数据没有 `__len__`（例如数据流）时必须设置。"
    ),
    "warmup_steps": "从 0 线性升到 `learning_rate` 的步数。整数是步数，[0, 1) 之间的小数是占总步数的比例。",
    "weight_decay": "优化器的 weight decay。bias 和 LayerNorm 的参数自动除外。",
    "max_grad_norm": "梯度裁剪的最大梯度范数。设为 0 就不裁剪。",
    "optim": "用哪个优化器。全部选项见 `OptimizerNames`。",
    "adam_beta1": "Adam 类优化器一阶矩（动量）的衰减率。",
    "adam_beta2": "Adam 类优化器二阶矩（方差）的衰减率。",
    "bf16": "bfloat16（BF16）混合精度训练。数值更稳定，一般优于 FP16。",
    "fp16": "float16（FP16）混合精度训练。硬件支持的话，考虑改用 BF16。",
    "torch_compile": "用 `torch.compile()` 编译模型，加快训练。",
    "use_cpu": "是否用 CPU。False 时使用可用的 torch 设备。",
    "seed": "训练开始时设置的随机种子。",
    "output_dir": "输出文件夹，写入模型和 checkpoint。",
    "run_name": "这次训练的名字，供 trackio、wandb、mlflow、comet 和 swanlab 的日志使用。",
    "report_to": "把结果和日志报告给哪些平台。'all' 是已安装的全部，'none' 是都不报告。",
    "disable_tqdm": "关闭进度条。log_level 是 warning 或更低时默认为 True。",
    "eval_strategy": "什么时候评测。可选：'no'、'steps'、'epoch'。",
    "eval_steps": (
        "`eval_strategy='steps'` 时，两次评测相隔的步数。不设就用 `logging_steps`。整数，或者 `[0,1)` 之间的小数；"
        "小于 1 表示占总步数的比例。"
    ),
    "per_device_eval_batch_size": "评测时每个设备（GPU/TPU core/CPU）的 batch 大小。",
    "save_strategy": "什么时候保存 checkpoint。可选：'no'、'epoch'、'steps'、'best'。",
    "save_steps": "每 X 步保存一次 checkpoint。整数，或者 `[0,1)` 之间的小数；小于 1 表示占总步数的比例。",
    "save_total_limit": (
        "最多保留几个 checkpoint，删除 `output_dir` 里更早的。`load_best_model_at_end=True` 时，最好的那个总会保留。"
    ),
    "load_best_model_at_end": "训练结束时加载最好的 checkpoint。需要设置 `eval_strategy`。",
    "metric_for_best_model": "`load_best_model_at_end=True` 时用哪个指标比较模型。默认 'loss'。",
    "resume_from_checkpoint": "一个有效 checkpoint 的文件夹，从它恢复。Trainer 不直接使用，供训练和评测脚本使用。",
    "push_to_hub": "每次保存模型时，是否推送到 Hub。",
    "hub_model_id": "与本地 `output_dir` 保持同步的仓库名。",
    "optim_args": "传给 AnyPrecisionAdamW、AdEMAMix、GaLore 等优化器的参数。",
    "adam_epsilon": "Adam 类优化器里保证数值稳定的 epsilon。",
    "optim_target_modules": "要优化的目标模块。目前用于 GaLore 和 APOLLO。",
    "average_tokens_across_devices": (
        "是否在设备之间平均 token 数。开启时用 all_reduce 同步 num_tokens_in_batch，让 loss 精确。参考："
        "https://github.com/huggingface/transformers/issues/34242"
    ),
    "label_smoothing_factor": "label smoothing 系数，防止过度自信。设为零就不用。",
    "bf16_full_eval": "评测时全部用 BF16（而不只是混合精度）。更快，省内存。",
    "fp16_full_eval": "评测时全部用 FP16（而不只是混合精度）。更快，省内存。",
    "tf32": "在 Ampere 及更新的 GPU 上启用 TF32。最多快 8 倍，精度损失可以忽略。",
    "activation_checkpointing_kwargs": (
        "传给 `activation_checkpointing_enable()` 的参数。`every_n_layers` 只对每 n 层里的一层做 checkpointing；"
        "`1` 就是通常的全部都做，更大的值用内存换回一些速度。`offload` 把保存的激活放到锁页内存，省显存，但每步更"
        "慢。其他的键转给 `torch.utils.checkpoint.checkpoint`。"
    ),
    "gradient_checkpointing": "`activation_checkpointing` 已弃用的别名，v6 会移除。",
    "gradient_checkpointing_kwargs": "`activation_checkpointing_kwargs` 已弃用的别名，v6 会移除。",
    "torch_compile_backend": "`torch.compile()` 的后端。设置后自动启用 `torch_compile`。",
    "torch_compile_mode": "`torch.compile()` 的编译模式。设置后自动启用 `torch_compile`。",
    "use_liger_kernel": "启用 Liger Kernel。吞吐提高约 20%，内存减少约 60%。",
    "liger_kernel_config": "Liger Kernel 的配置，作为参数传给 `_apply_liger_kernel_to_instance()`。None 用默认配置。",
    "use_cache": "模型是否使用缓存。训练时一般不需要，只有一些用到 `cache` 的 PEFT 方法例外。",
    "neftune_noise_alpha": "不是 None 时启用 NEFTune 噪声嵌入，能明显改善指令微调。常用范围：[5.0, 15.0]。",
    "torch_empty_cache_steps": (
        "每隔多少步调用一次 `torch.<device>.empty_cache()`。有助于避免 CUDA 显存不足，慢约 10%。None 表示不清空。"
    ),
    "auto_find_batch_size": (
        "是否自动按指数递减寻找放得下的训练 batch 大小，避免 CUDA 显存不足。评测的 batch 大小不变。"
    ),
    "logging_strategy": "什么时候记日志。可选：'no'、'epoch'、'steps'。",
    "logging_first_step": "是否记录第一个 `global_step`。",
    "log_on_each_node": "多机训练时，是每台机器都记日志，还是只有主节点记。",
    "include_num_input_tokens_seen": (
        "是否统计见过的输入 token 数。必须是 [`all`, `non_padding`, `no`] 之一，或者布尔值，对应 `all` 或 `no`。"
    ),
    "log_level": "主进程的日志级别。可选：'debug'、'info'、'warning'、'error'、'critical'、'passive'。",
    "log_level_replica": "分布式训练里其他进程的日志级别。选项同 `log_level`。",
    "project": "日志用的项目名。目前只有 Trackio 使用。",
    "trackio_space_id": (
        "Trackio 实时日志（Gradio，可读写 Bucket）所用的 Hugging Face Space。写 'username/reponame'、"
        "'orgname/reponame' 或 'reponame'（当前用户的命名空间）。None：只在本地记录，不用 Space。训练之后需要稳定"
        "的面板链接时，优先用 trackio_static_space_id。默认公开，除非 hub_private_repo=True，或者组织的默认设置不"
        "公开。"
    ),
    "trackio_bucket_id": "使用 Trackio Space 时可选的 HF Bucket id；不设由 Trackio 选择默认值。",
    "trackio_static_space_id": (
        "Bucket 之上的只读静态 Trackio Space（供模型卡使用的稳定链接）。False：推送到 Hub 时不做静态同步，训练后不"
        "冻结。None/str：允许静态 Space；只在本地记录时，推送到 Hub 会运行 sync(static)；只有设了 trackio_space_id"
        "（Gradio Space），训练后才冻结。str 指定静态 Space 的 id。默认公开，除非 hub_private_repo=True，或者组织"
        "的默认设置不公开。"
    ),
    "eval_delay": "第一次评测之前要等多少个 epoch 或步，取决于 eval_strategy。",
    "prediction_loss_only": "评测和预测时只返回 loss。",
    "eval_on_start": "是否在训练一开始先完整跑一次 `evaluation`，作为检查。",
    "eval_do_concat_batches": (
        "是否把各个 batch 的输入、loss、标签和预测递归地拼接起来。`False` 时保存为列表，每个 batch 分开。"
    ),
    "eval_use_gather_object": "是否从所有设备递归地收集嵌套的列表、元组或字典里的对象。",
    "eval_accumulation_steps": "评测时累积多少步的输出张量再移到 CPU。不设就全部留在加速器上，最后才移到 CPU。",
    "include_for_metrics": "给 `compute_metrics` 函数额外传入的数据。可选：'inputs'、'loss'。",
    "batch_eval_metrics": "分批计算评测指标，省内存。",
    "save_only_model": "只保存模型权重，不保存优化器、调度和随机数状态。这样就不能从 checkpoint 恢复训练。",
    "save_on_each_node": "多机训练时，是在每台机器上都保存模型和 checkpoint，还是只在主节点上保存。",
    "enable_jit_checkpoint": (
        "收到 SIGTERM 时即时保存 checkpoint，让可抢占的任务体面地结束。请相应配置编排系统的宽限时间。"
    ),
    "hub_token": "推送模型到 Hub 用的 token。默认是 `hf auth login` 登录的 token。",
    "hub_private_repo": (
        "是否建成私有仓库。`None`（默认）时公开，除非组织的默认设置是私有。仓库已存在时不起作用。创建或同步 "
        "Trackio Space 时（包括 `trackio_space_id` 为 None 时推送到 Hub），Space 是否私有也按同样的规则。"
    ),
    "hub_strategy": "什么时候推送什么到 Hub。可选：'end'、'every_save'、'checkpoint'、'all_checkpoints'。",
    "hub_always_push": "不是 `True` 时，上一次推送没有完成就跳过这一次。",
    "hub_revision": "推送到 Hub 的哪个版本。可以是分支名、标签或提交哈希。",
    "greater_is_better": "指标是否越大越好。默认由 `metric_for_best_model` 决定。",
    "ignore_data_skip": "恢复训练时不再快进数据到之前的位置。True 时从数据集开头重新训练。",
    "restore_callback_states_from_checkpoint": (
        "是否从 checkpoint 恢复 callback 的状态。`True` 时，checkpoint 里有的会覆盖传给 `Trainer` 的 callback。"
    ),
    "full_determinism": (
        "是否用 enable_full_determinism 代替 set_seed，让分布式训练可以复现。注意：这会影响性能，只用于调试。"
    ),
    "data_seed": "数据采样器的随机种子。不设就和 `seed` 相同。",
    "accelerator_config": "内部集成的 Accelerate 的配置。JSON 配置文件的路径，或者字典。",
    "parallelism_config": "训练的并行配置。需要 Accelerate `1.10.1`。",
    "dataloader_drop_last": "最后一个 batch 不满时丢弃。",
    "dataloader_num_workers": "加载数据的子进程数（仅 PyTorch）。0 表示在主进程里加载。",
    "dataloader_pin_memory": "DataLoader 是否使用锁页内存。",
    "dataloader_persistent_workers": (
        "True 时，数据集用完一遍之后不关闭工作进程，保留其中的 Dataset 实例。可能加快训练，但占更多内存。"
    ),
    "dataloader_prefetch_factor": "每个工作进程预取的 batch 数。2 表示所有进程一共预取 2 * num_workers 个 batch。",
    "dataloader_multiprocessing_context": (
        "加载数据的工作进程的启动方式（'fork'、'spawn' 或 'forkserver'）。默认用 PyTorch 的默认值；MPS 上 "
        "dataloader_num_workers > 1 时默认 'fork'。数据源的对象不能安全 fork 时（例如经 pyarrow 读 HDFS）用 "
        "'spawn'。用 'spawn' 时，自定义的 collate_fn 和数据集代码必须能在模块层面导入（不能用 lambda 或闭包）。"
    ),
    "dataloader_in_order": (
        "True（默认）时按分派给工作进程的顺序返回 batch。False 时哪个先好就先返回，减少 IterableDataset 流式读取的"
        "尾部延迟。需要 PyTorch >= 2.6。"
    ),
    "label_names": "输入字典里哪些键是标签。",
    "train_sampling_strategy": (
        "训练的采样方式：'random'（默认）、'sequential'、'group_by_length' 或 'batch_rebalance'。"
    ),
    "length_column_name": (
        "预先算好的长度所在的列。`train_sampling_strategy` 不是 'group_by_length' 或 'batch_rebalance' 时不起作用。"
    ),
    "ddp_find_unused_parameters": "分布式训练时，传给 `DistributedDataParallel` 的 `find_unused_parameters`。",
    "ddp_bucket_cap_mb": "分布式训练时，传给 `DistributedDataParallel` 的 `bucket_cap_mb`。",
    "ddp_broadcast_buffers": "分布式训练时，传给 `DistributedDataParallel` 的 `broadcast_buffers`。",
    "ddp_static_graph": "分布式训练时，传给 `DistributedDataParallel` 的 `static_graph`。",
    "ddp_backend": "分布式训练的后端。必须是 'nccl'、'mpi'、'xccl'、'gloo'、'hccl' 之一。",
    "ddp_timeout": "`torch.distributed.init_process_group` 的超时（秒）。",
    "fsdp": "启用 PyTorch Fully Sharded Data Parallel（FSDP）分布式训练。传 `--fsdp`（或 `fsdp=True`）开启。",
    "fsdp_config": "FSDP 的配置（启用 `fsdp` 时才有用）。JSON 配置文件（例如 `fsdp_config.json`）的路径，或者字典。",
    "deepspeed": "启用 DeepSpeed。JSON 配置文件的路径，或者字典。",
    "debug": (
        "启用调试功能。可选：'underflow_overflow'（检测模型输入输出的溢出）、'tpu_metrics_debug'（打印 TPU 指标）。"
    ),
    "skip_memory_metrics": "是否不把内存分析结果写进指标。默认不写，因为会拖慢训练。",
    "do_train": "是否训练。Trainer 不直接使用，供训练和评测脚本使用。",
    "do_eval": "是否评测。Trainer 不直接使用，供训练和评测脚本使用。",
    "do_predict": "是否在测试集上预测。Trainer 不直接使用，供训练和评测脚本使用。",
    "local_rank": (
        "使用 torch.distributed.launch（已弃用）时，脚本会收到 `local_rank`，所以解析器需要它。要取得本地 rank，请"
        "用属性 `local_process_index`。"
    ),
}


def help_in_chinese(name: str, text: str) -> str:
    """The Chinese of a field's help.

    Raises:
        KeyError: If it has none.
    """
    if text not in OURS and name not in OF_TRANSFORMERS:
        raise KeyError(f"docs/chinese_settings.py has no Chinese for the help of {name}: {text}")
    return OURS[text] if text in OURS else OF_TRANSFORMERS[name]
