# SPDX-License-Identifier: Apache-2.0
"""The teacher of a distillation: a frozen model, or a frozen adapter on the base of the student's own.

It must have the vocabulary of the student (see `vocabularies.py`). It is asked for hidden states, not logits; its head
is applied where the student's is (see `forward/divergences.py`). Where weights are sharded over processes, it keeps a
whole copy of that head.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType, is_peft_model
from peft import PeftConfig, PeftModel, PeftType
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils import AuxiliaryTrainingWrapper
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.peft_utils import find_adapter_config_file
from trl.models.utils import prepare_deepspeed, prepare_fsdp

from ...forward.divergences import TeacherRows
from ...forward.head_rows import Project, can_read_head, read_head, unchanged
from ...forward.introspection import refuse_learned_prompts, unwrap, vocabulary_size
from ...forward.lean import restore_forwards
from ...forward.proof import plain_layout_of
from ...forward.token_batch import TokenBatch
from ...paths import check_loadable
from ..distributed.rollout_weights import RolloutWeights
from ..distributed.sharding import shards_weights, whole_weights
from ..settings.distill import DistillConfig
from .adapters import (
    POLICY_ADAPTER,
    TEACHER_ADAPTER,
    active_adapter,
    belongs_to,
    rewrites_base,
    starting_plainly,
    trained_outside_adapters,
)
from .dropout import disable_dropout
from .policy import check_context, fast_layout, load_whole
from .reference import fingerprint_of
from .vocabularies import check_sizes, check_vocabulary
from .weights import load_adapter


class Teacher:
    """Answers what follows each token of the student's completions.

    Args:
        model (`PreTrainedModel`, *optional*): The teacher; unset, it is the adapter `TEACHER_ADAPTER` of the student.
        student (`PreTrainedModel`): The policy, not yet wrapped.
        args ([`DistillConfig`]): Settings.
        layout (`str`): The student's, which an adapter on the same base has too.
    """

    def __init__(self, model: PreTrainedModel | None, student: PreTrainedModel, args: DistillConfig, layout: str):
        self._model = model
        self._head: nn.Module | None = None  # the student's own
        self._weights: RolloutWeights | None = None
        self._accelerator: Accelerator | None = None
        if model is None:
            self.layout, probed = layout, student
        else:
            refuse_learned_prompts(model)
            model.eval().requires_grad_(False)
            if args.disable_dropout:
                disable_dropout(model)
            check_context(model, args, "teacher")
            self.layout, probed = fast_layout(model, args, with_aux_loss=False, purpose="asked as a teacher"), model
        with whole_weights(probed), self._answering(student):
            self._gives_hidden = not _adapts_head(probed) and can_read_head(probed, self.layout)
        self.fingerprint = _fingerprint(model, student)

    @property
    def model(self) -> PreTrainedModel | None:
        """The teacher, if it is no adapter of the student."""
        return self._model

    def prepare(self, accelerator: Accelerator) -> None:
        """Places the teacher on the device, and shards it if the student is sharded."""
        self._accelerator = accelerator
        if self._model is None:
            return
        self._weights = RolloutWeights(self._model, accelerator)
        if self._gives_hidden:
            head = unwrap(self._model).get_output_embeddings()
            with whole_weights(self._model):
                self._head = copy.deepcopy(head).to(accelerator.device) if shards_weights(accelerator) else head
        if accelerator.distributed_type == DistributedType.DEEPSPEED:
            self._model = prepare_deepspeed(self._model, accelerator)
        elif accelerator.distributed_type == DistributedType.FSDP:
            self._model = prepare_fsdp(self._model, accelerator)
        else:
            self._model = accelerator.prepare_model(self._model, evaluation_mode=True)

    @torch.no_grad()
    def rows(self, student: nn.Module, batch: TokenBatch) -> TeacherRows:
        """What the teacher says at the scored tokens of a batch.

        Args:
            student (`nn.Module`): The wrapped policy.
            batch ([`TokenBatch`]): The completions.
        """
        if isinstance(student, DistributedDataParallel):
            student = student.module  # nothing to exchange, and processes may make different numbers of passes
        model = student if self._model is None else self._model
        gives_hidden = self._gives_hidden
        with self._answering(student):
            values, _ = read_head(
                model,
                batch,
                self.layout,
                lambda project, hidden, rows: hidden if gives_hidden else project(hidden),
                reads_head=gives_hidden,
            )
        return TeacherRows(values, self._project if gives_hidden else unchanged)

    @property
    def _project(self) -> Project | None:
        return None if self._head is None else self._head.forward  # not its call, which would run hooks of sharding

    def use_plain_forward(self) -> None:
        """From now on, the plain layout and modules; a student whose base is shared has done the same."""
        self.layout = plain_layout_of(self.layout)
        for module in filter(None, (self._model, self._head)):
            restore_forwards(module)

    @contextmanager
    def drawing(self, student: PreTrainedModel) -> Iterator[nn.Module]:
        """Yields the teacher with whole weights, for an engine. Every process enters it.

        Args:
            student (`PreTrainedModel`): The policy with whole weights.
        """
        if self._model is None:
            with active_adapter(student, TEACHER_ADAPTER):
                yield student
            return
        with self._weights.gathered(self._model, self._accelerator.unwrap_model(self._model)) as model:
            yield model

    @contextmanager
    def _answering(self, student: nn.Module) -> Iterator[None]:
        """Switches a student whose base is shared to the teacher's adapter."""
        if self._model is not None:
            yield
            return
        was_training = student.training
        student.eval()
        try:
            policy = student if self._accelerator is None else self._accelerator.unwrap_model(student)
            with active_adapter(policy, TEACHER_ADAPTER):
                yield
        finally:
            student.train(was_training)


def _adapts_head(model: nn.Module) -> bool:
    head = unwrap(model).get_output_embeddings()
    return isinstance(head, BaseTunerLayer | AuxiliaryTrainingWrapper)


def _fingerprint(model: PreTrainedModel | None, student: PreTrainedModel) -> str | None:
    if model is not None:
        return fingerprint_of(model.parameters())
    named = student.named_parameters()
    return fingerprint_of(parameter for name, parameter in named if belongs_to(name, TEACHER_ADAPTER))


# Making one


def check_teacher(teacher: Any, student: Any, args: DistillConfig) -> str | PreTrainedModel:
    """Returns the teacher that a trainer was given, or its name in the settings.

    Raises:
        TypeError: If it is neither a name nor a model.
        ValueError: If there is none, or two, or it is the student, or arguments for loading one that is loaded.
    """
    named = args.teacher_model_name_or_path
    if teacher is not None and named is not None:
        raise ValueError(
            f"Two teachers: teacher_model was passed, and teacher_model_name_or_path is {named!r}. Leave out one."
        )
    teacher = named if teacher is None else teacher
    if teacher is None:
        raise ValueError(
            "There is no teacher. Pass teacher_model, or set teacher_model_name_or_path to the name or folder of a "
            "model, or of an adapter."
        )
    if not isinstance(teacher, str | nn.Module):
        raise TypeError(f"teacher_model is a {type(teacher).__name__}, expected a name or folder (a str), or a model.")
    if teacher is student or (isinstance(teacher, str) and teacher == student):
        named = repr(teacher) if isinstance(teacher, str) else "the model that was passed"
        raise ValueError(
            f"The teacher is the student itself ({named}), from which it is 0 away at the start. Name another model."
        )
    if args.teacher_model_init_kwargs and not isinstance(teacher, str):
        raise ValueError(
            f"teacher_model_init_kwargs ({args.teacher_model_init_kwargs}) apply to a teacher passed by name, but it "
            f"is already a {type(teacher).__name__}. Pass them to its from_pretrained instead."
        )
    return teacher


def make_teacher(
    teacher: str | PreTrainedModel,
    student: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    args: DistillConfig,
    layout: str,
) -> Teacher:
    """Loads a teacher, as an adapter of the student's where it is one on the same base.

    Args:
        teacher (`str` or `PreTrainedModel`): A name, a folder, or a model.
        student (`PreTrainedModel`): The policy with its adapters, not yet wrapped.
        tokenizer (`PreTrainedTokenizerBase`): The student's.
        args ([`DistillConfig`]): Settings.
        layout (`str`): The student's.

    Raises:
        ValueError: If the teacher has another vocabulary.
    """
    if not isinstance(teacher, str):
        check_sizes(vocabulary_size(student), vocabulary_size(teacher), "teacher_model")
        return Teacher(teacher, student, args, layout)
    adapter = _adapter_config(teacher, args)
    code, revision = args.trust_remote_code, (args.teacher_model_init_kwargs or {}).get("revision")
    base = None if adapter is None else adapter.base_model_name_or_path
    check_vocabulary(vocabulary_size(student), tokenizer, teacher, base, trust_remote_code=code, revision=revision)
    if adapter is not None and _shares_base(student, adapter):
        _add_teacher_adapter(student, teacher, adapter)
        return Teacher(None, student, args, layout)
    init_kwargs = {"trust_remote_code": args.trust_remote_code, **(args.teacher_model_init_kwargs or {})}
    return Teacher(load_whole(teacher, init_kwargs), student, args, layout)


def _adapter_config(name: str, args: DistillConfig) -> PeftConfig | None:
    init_kwargs = args.teacher_model_init_kwargs or {}
    revision = init_kwargs.get("revision")
    check_loadable(name, "teacher", init_kwargs.get("cache_dir"))
    if find_adapter_config_file(name, revision=revision) is None:
        return None
    return PeftConfig.from_pretrained(name, revision=revision)


# An adapter on the student's base


def _shares_base(student: PreTrainedModel, adapter: PeftConfig) -> bool:
    """Whether the adapter computes on the student's frozen base what it does on its own."""
    if not is_peft_model(student) or trained_outside_adapters(student):
        return False
    own = student.peft_config[POLICY_ADAPTER]
    kinds = {own.peft_type, adapter.peft_type}
    if kinds != {PeftType.LORA} or rewrites_base(own) or rewrites_base(adapter) or adapter.revision:
        return False
    base = own.base_model_name_or_path or student.get_base_model().config._name_or_path
    return bool(base) and _same_place(base, adapter.base_model_name_or_path)


def _same_place(one: str, other: str | None) -> bool:
    if other is None:
        return False
    return one == other or (
        Path(one).is_dir() and Path(other).is_dir() and Path(one).resolve() == Path(other).resolve()
    )


def _add_teacher_adapter(student: PeftModel, folder: str, config: PeftConfig) -> None:
    trained = {name for name, parameter in student.named_parameters() if parameter.requires_grad}
    with whole_weights(student, changed=True):
        student.add_adapter(TEACHER_ADAPTER, starting_plainly(config))
        load_adapter(student, folder, TEACHER_ADAPTER)
    for name, parameter in student.named_parameters():
        parameter.requires_grad_(name in trained)
