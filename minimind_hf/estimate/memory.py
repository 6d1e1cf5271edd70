# SPDX-License-Identifier: Apache-2.0
"""Estimates the memory of each process of a run, from the shapes of the model alone.

    policy, reference, critic   weights; adapters need no copy for the reference, and share their base with the critic
    optimizer                   AdamW: two float32 moments; with reduced precision under ZeRO a float32 copy too
    rollout                     a packed copy of the weights, and keys and values of the rows decoded at a time
    update                      activations of one pass, a tile of logits, and the gradients of earlier passes; with a
                                separate critic, also its activations and all gradients
    libraries                   code and buffers that torch and other libraries load at first use; on a CUDA device its
                                context and the workspaces of cuBLAS
    kept                        on a CUDA device: what captured graphs read, which is there during the update too
    graphs, fragments           on a CUDA device: captured graphs, and memory in pieces too small to use

Sharded state is divided by the number of processes: ZeRO-1 shards the optimizer, ZeRO-2 also gradients, ZeRO-3 and
FSDP2 also weights (but the whole policy is gathered for a rollout). Rollout and update do not overlap, so the larger
one counts. The constants were fitted to runs on a CPU; the table in docs/scaling.md compares estimates with
measurements. Activations on a device were counted from what autograd keeps; the overheads of CUDA are assumed, and
nothing was measured on one.
"""

from dataclasses import dataclass, fields, replace
from typing import Annotated

from .. import default_sizes
from ..bounds import Bounds, Count, check_settings

MODES = ("ddp", "zero1", "zero2", "zero3", "fsdp2")
ALGORITHMS = ("grpo", "ppo")
DTYPES = {"float32": 4, "bfloat16": 2}
_MOMENTS = 8  # bytes of AdamW's state per parameter
_LOGITS_TILE = 32 * 2**20
_LIBRARIES = 130 * 2**20
# On a CUDA device. The context with all kernels loaded takes 300 to 600 MiB, and cuBLAS up to 40 MiB.
_CONTEXT = 640 * 2**20
_LOGITS_TILE_ON_DEVICE = 160 * 2**20  # the fewest logits that are held at a time, with copies and gradients
_GRAPH = 8 * 2**20  # of one captured bucket: its nodes, and their arguments
_COPIES_OF_LOGITS = 4  # in a decoding step: as returned, in float32, noise, and their sum
_FRAGMENTS = 0.08  # of all tensors
# Vectors of hidden size that autograd keeps per layer and token, in addition to those of attention and MLP.
_HIDDEN_KEPT = 14
# The same on a device, counted with FlexAttention: bytes for each number of a hidden state, of queries, of keys and of
# the MLP. In bfloat16 norms keep float32, and each product has a narrow copy of its input.
_KEPT_ON_DEVICE = {4: {"hidden": 6 * 4, "queries": 5 * 4, "keys": 4 * 4, "mlp": 4 * 4}}
_KEPT_ON_DEVICE[2] = {"hidden": 4 * 4 + 5 * 2, "queries": 4 + 4 * 2, "keys": 4 + 3 * 2, "mlp": 4 * 2}
# Share of the activations of policy and critic that still exists when most gradients do.
_KEPT_AT_PEAK = 0.85
_OF_CUDA = ("kept", "graphs", "fragments")
# Tokens that GRPO computes at a time in a single CPU process, in whole groups
_CPU_TOKENS = 1024


@dataclass(frozen=True)
class Shape:
    """The sizes of a model that determine its memory.

    Args:
        parameters (`int`), layers (`int`), hidden (`int`), intermediate (`int`), vocab (`int`): Sizes of the model.
        heads (`int`), kv_heads (`int`), head_dim (`int`): Sizes of its attention.
        embedding (`int`): Parameters of the embedding, counted once even if it is tied to the head.
    """

    parameters: int
    layers: int
    hidden: int
    intermediate: int
    vocab: int
    heads: int
    kv_heads: int
    head_dim: int
    embedding: int


@dataclass(frozen=True)
class Setting:
    """The settings of a run that determine its memory.

    Args:
        algorithm (`str`): `"grpo"` or `"ppo"`.
        mode (`str`): One of [`MODES`].
        processes (`int`): Number of processes.
        dtype (`str`): Dtype of weights and activations.
        trained (`int`, *optional*): Parameters of the adapters. Default: all weights are trained.
        reference (`bool`): Whether there is a KL penalty.
        rows (`int`): Completions per micro-batch of the update and process: `per_device_train_batch_size` of GRPO,
            `mini_batch_size` of PPO.
        rollout_rows (`int`, *optional*): Completions decoded at a time. Default: `rows`.
        group (`int`): `num_generations`.
        prompt (`int`), completion (`int`): Tokens of a prompt and of a completion.
        max_tokens (`int`, *optional*): `max_tokens_per_microbatch`.
        on_cpu (`bool`), on_cuda (`bool`): Whether the run is on a CPU, on a CUDA device.
        bf16 (`bool`): Whether passes are computed in bfloat16 with weights of `dtype`.
    """

    algorithm: Annotated[str, Bounds(choices=ALGORITHMS)] = "grpo"
    mode: Annotated[str, Bounds(choices=MODES)] = "ddp"
    processes: Count = 1
    dtype: Annotated[str, Bounds(choices=tuple(DTYPES))] = "float32"
    trained: Count | None = None
    reference: bool = True
    rows: Count = default_sizes.GRPO["per_device_train_batch_size"]
    rollout_rows: Count | None = None
    group: Count = default_sizes.GRPO["num_generations"]
    prompt: Count = 128
    completion: Count = default_sizes.MAX_COMPLETION_LENGTH
    max_tokens: Count | None = None
    on_cpu: bool = False
    on_cuda: bool = False
    bf16: bool = False

    def __post_init__(self):
        check_settings(self)
        if self.on_cpu and self.on_cuda:
            raise ValueError("on_cpu and on_cuda are both set, but a run is on one of them.")

    @property
    def computed(self) -> int:
        """Bytes of a number in a pass."""
        return 2 if self.bf16 else DTYPES[self.dtype]


@dataclass(frozen=True)
class Estimate:
    """Bytes per process."""

    policy: int
    reference: int
    critic: int
    gradients: int
    optimizer: int
    rollout: int
    update: int
    kept: int = 0  # of the rollout
    libraries: int = _LIBRARIES
    graphs: int = 0
    fragments: int = 0

    @property
    def tensors(self) -> int:
        """Tensors that are always there, plus those of the largest phase."""
        standing = self.policy + self.reference + self.critic + self.optimizer
        return standing + max(self.rollout, self.kept + max(self.update, self.gradients))

    @property
    def total(self) -> int:
        """Memory that is always in use, plus the largest phase."""
        return self.tensors + self.libraries + self.graphs + self.fragments

    def rows(self) -> list[tuple[str, int]]:
        found = [(field.name, getattr(self, field.name)) for field in fields(self)]
        return [(name, value) for name, value in found if value or name not in _OF_CUDA] + [("total", self.total)]


def estimate(shape: Shape, setting: Setting) -> Estimate:
    """Estimates the memory of one process.

    Args:
        shape ([`Shape`]): Shape of the policy.
        setting ([`Setting`]): Settings of the run.

    Returns:
        [`Estimate`]
    """
    size = DTYPES[setting.dtype]
    with_adapters = setting.trained is not None
    is_ppo = setting.algorithm == "ppo"
    trunk = shape.parameters
    own_critic = is_ppo and not with_adapters
    trained = setting.trained if with_adapters else shape.parameters
    trained *= 2 if is_ppo else 1
    weights_shared = setting.processes if setting.mode in ("zero3", "fsdp2") else 1
    gradients_shared = setting.processes if setting.mode in ("zero2", "zero3", "fsdp2") else 1
    optimizer_shared = 1 if setting.mode == "ddp" else setting.processes
    has_master = setting.mode.startswith("zero") and size < 4
    adapters = trained * size if with_adapters else 0
    found = Estimate(
        policy=(shape.parameters * size + adapters) // weights_shared,
        reference=shape.parameters * size // weights_shared if setting.reference and not with_adapters else 0,
        critic=trunk * size // weights_shared if own_critic else 0,
        gradients=trained * size // gradients_shared,
        optimizer=trained * (_MOMENTS + (4 if has_master else 0)) // optimizer_shared,
        rollout=_gathered(shape, setting, size) + _kept(shape, setting, size),
        update=_update(shape, setting, own_critic, trained * size // gradients_shared),
    )
    return _with_cuda(found, shape, setting) if setting.on_cuda else found


def _with_cuda(found: Estimate, shape: Shape, setting: Setting) -> Estimate:
    """Adds what CUDA takes. Graphs are captured for 1, 2, 4, ... rows, and share the memory of the largest step."""
    rows = setting.rollout_rows or setting.rows
    step = rows * (_COPIES_OF_LOGITS * 4 * shape.vocab + 2 * (shape.intermediate + shape.hidden) * setting.computed)
    graphs = rows.bit_length() * _GRAPH + step
    found = replace(found, kept=_kept(shape, setting, DTYPES[setting.dtype]))
    fragments = int(_FRAGMENTS * (found.tensors + graphs))
    return replace(found, libraries=_CONTEXT, graphs=graphs, fragments=fragments)


def _gathered(shape: Shape, setting: Setting, size: int) -> int:
    return shape.parameters * size if setting.mode in ("zero3", "fsdp2") else 0


def _kept(shape: Shape, setting: Setting, size: int) -> int:
    """The copy of the weights that decodes, and keys and values. Graphs need a copy only in another dtype."""
    copied = 0 if setting.on_cuda and setting.computed == size else shape.parameters * setting.computed
    rows = setting.rollout_rows or setting.rows
    prompts = rows if setting.on_cuda else -(-rows // setting.group)  # graphs have keys and values of each row apart
    tokens = rows * setting.completion + prompts * setting.prompt
    return copied + 2 * shape.layers * shape.kv_heads * shape.head_dim * tokens * setting.computed


def _update(shape: Shape, setting: Setting, own_critic: bool, gradients: int) -> int:
    whole = _tokens(setting, setting.rows)
    tokens = min(whole, setting.max_tokens or whole)
    one_cpu = setting.on_cpu and setting.processes == 1 and setting.algorithm == "grpo"
    if one_cpu and setting.max_tokens is None and whole > _CPU_TOKENS:
        group = _tokens(setting, setting.group)
        tokens = min(whole, max(group, _CPU_TOKENS // group * group))
    layers = shape.layers + (1 if setting.on_cuda else 0)  # what the backward pass of one layer holds besides
    activations = layers * tokens * _kept_per_token(shape, setting)
    tile = _LOGITS_TILE_ON_DEVICE if setting.on_cuda else _LOGITS_TILE
    if setting.bf16:  # autocast keeps the narrow weights of a pass until its end
        tile += shape.parameters * setting.computed * (2 if own_critic else 1)
    if own_critic:
        return int(2 * _KEPT_AT_PEAK * activations) + tile + gradients
    return activations + tile + (gradients if tokens < whole else 0)


def _kept_per_token(shape: Shape, setting: Setting) -> int:
    """Bytes that autograd keeps per layer and token."""
    size = setting.computed
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    outputs = 2 * queries + 2 * keys  # queries, output, keys, values
    of_adapters = 0
    if setting.trained is not None:  # the output of each adapter is kept in addition to that of its layer
        of_adapters = (outputs + 2 * shape.intermediate + shape.hidden) * size
    if setting.on_cuda:
        bytes_of = _KEPT_ON_DEVICE[size]
        kept = bytes_of["hidden"] * shape.hidden + bytes_of["queries"] * queries + bytes_of["keys"] * keys
        return kept + bytes_of["mlp"] * shape.intermediate + of_adapters
    return (2 * outputs + 4 * shape.intermediate + _HIDDEN_KEPT * shape.hidden) * size + of_adapters


def _tokens(setting: Setting, rows: int) -> int:
    """Tokens of this many completions, with each prompt counted once."""
    group = setting.group if setting.algorithm == "grpo" else 1
    return rows * setting.completion + -(-rows // group) * setting.prompt


def shape_of(config) -> Shape:
    """Reads the shape from a model's config.

    Args:
        config (`PreTrainedConfig`): Config of a causal LM.
    """
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    text = config.get_text_config()
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return Shape(
        parameters=model.num_parameters(),
        layers=text.num_hidden_layers,
        hidden=text.hidden_size,
        intermediate=text.intermediate_size,
        vocab=text.vocab_size,
        heads=text.num_attention_heads,
        kv_heads=getattr(text, "num_key_value_heads", None) or text.num_attention_heads,
        head_dim=head_dim,
        embedding=model.get_input_embeddings().weight.numel(),
    )


def adapter_parameters(shape: Shape, rank: int) -> int:
    """Parameters of LoRA adapters on all linear layers of a dense model."""
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    sizes = [(shape.hidden, queries), (shape.hidden, keys), (shape.hidden, keys), (queries, shape.hidden)]
    sizes += [(shape.hidden, shape.intermediate)] * 2 + [(shape.intermediate, shape.hidden)]
    return shape.layers * rank * sum(incoming + outgoing for incoming, outgoing in sizes)
