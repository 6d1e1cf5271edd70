# SPDX-License-Identifier: Apache-2.0
"""Shared by the recipes that come before reinforcement learning: arguments, loading, saving, report, last lines."""

import json
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, fields
from typing import Any

import datasets
from common import model_init_kwargs, tell
from flags import explaining_evaluation, prepare_resume, separate_config, split_config, will_evaluate
from guarded import guarded
from quiet import moving, switch_bars_off
from recipe_parser import RecipeParser
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase, Trainer, TrainingArguments
from trl import ModelConfig, get_peft_config

from minimind_hf.bounds import check_settings
from minimind_hf.data.loading import load_rows
from minimind_hf.data.objects import own_fields, shared_field_columns
from minimind_hf.data.tokenizers import turn_end
from minimind_hf.environment import only_cpu
from minimind_hf.forward.generation_settings import make_generation_config_savable
from minimind_hf.language import AUTO, speaking
from minimind_hf.paths import (
    check_model_path,
    check_nothing_missing,
    check_tokenizer_files,
    without_load_report,
)
from minimind_hf.trainer.checkpoints.card import described_run_on_data
from minimind_hf.trainer.logs.about import about_run
from minimind_hf.trainer.logs.closing import closing_lines
from minimind_hf.trainer.logs.run_files import RunFiles
from minimind_hf.trainer.settings.checks import check_intervals, check_output_dir
from minimind_hf.trainer.settings.given import differs
from minimind_hf.trainer.settings.logs import LANGUAGE_HELP, Language
from minimind_hf.trainer.settings.secrets import without_secrets

ROUTER_LOGITS = "output_router_logits"
MEASURES = ("eval_loss", "rewards/accuracies", "eval_rewards/accuracies", "accuracy", "eval_accuracy")

LABELS = {"sft": "SFT", "dpo": "DPO", "reward": "Reward model"}
"""What the report of a run calls its algorithm, by the name of the recipe."""

Check = Callable[[Mapping[str, Any], str], object]
Encode = Callable[[Mapping[str, Any], int], dict[str, Any]]


@dataclass
class DataArguments:
    """The data to train on."""

    dataset_name: str = field(metadata={"help": "A .jsonl, .json, .parquet or .csv file, a folder, or a hub name."})
    dataset_config: str | None = field(default=None, metadata={"help": "Configuration of the data set."})
    dataset_train_split: str = field(default="train", metadata={"help": "Split to train on, e.g. 'train[:1000]'."})
    eval_dataset_name: str | None = field(
        default=None, metadata={"help": "Data for evaluations (see eval_strategy). Unset: dataset_name."}
    )
    dataset_test_split: str | None = field(
        default=None, metadata={"help": "Split to evaluate on. Unset: 'train' of eval_dataset_name, else 'test'."}
    )
    drop_longer: bool = field(
        default=False,
        metadata={"help": "Leave out rows longer than max_length, of which only a part would be learned."},
    )
    language: Language = field(default=AUTO, metadata={"help": LANGUAGE_HELP})


class Recipe:
    """One run of a trl trainer on MiniMind's data, from arguments to the saved folder.

    Args:
        name (`str`): Name of the recipe, printed in its last line.
        config_class: Settings of the trainer.
        arguments (`Sequence[str]`, *optional*): Command line. Unset: that of the process.
        data_class: Arguments about the data.
        doc (`str`, *optional*): The docstring of the recipe, for its help.
    """

    def __init__(
        self,
        name: str,
        config_class: type[TrainingArguments],
        arguments: Sequence[str] | None = None,
        data_class: type[DataArguments] = DataArguments,
        doc: str | None = None,
    ):
        self._name = name
        self._start = time.perf_counter()
        parser = RecipeParser(name, (data_class, config_class, ModelConfig), doc)
        given = separate_config(sys.argv[1:] if arguments is None else arguments)
        _avoid_deprecated_default(parser, given)
        parser.set_defaults_with_config(use_cpu=only_cpu())
        switch_bars_off()
        self.data, self.args, self.model_config = parser.parse(given)
        self._given = parser.given_names(given)
        check_settings(self.data, {"language": Language})
        if self.model_config.model_name_or_path is None:
            raise ValueError("There is no model to train. Give one with --model_name_or_path FOLDER.")
        check_model_path(self.model_config.model_name_or_path)
        check_tokenizer_files(self.model_config.model_name_or_path)
        check_intervals(self.args)
        check_output_dir(self.args.output_dir)
        _check_max_length(self.args)
        prepare_resume(self.args)
        self.tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            self.model_config.model_name_or_path, trust_remote_code=self._trusts_code
        )
        given_eos = getattr(self.args, "eos_token", None)
        if given_eos in self.tokenizer.get_vocab():  # trl sets it too late for what is learned of a turn
            self.tokenizer.eos_token = given_eos

    @property
    def _trusts_code(self) -> bool:
        return bool(getattr(self.args, "trust_remote_code", False))

    def load_model(self, auto_class: Any, **kwargs: Any) -> PreTrainedModel:
        """Loads the model to start from with an Auto class."""
        options = model_init_kwargs(self.model_config) | (self.args.model_init_kwargs or {}) | kwargs
        options["trust_remote_code"] = self._trusts_code
        options.setdefault("dtype", "float32")
        name = self.model_config.model_name_or_path
        new_head = "num_labels" in kwargs
        with without_load_report() if new_head else nullcontext():
            model, info = auto_class.from_pretrained(name, output_loading_info=True, **options)
        check_nothing_missing(name, model, info, new_head=new_head)
        self._check_vocabulary(model)
        self._router_logits = getattr(model.config, ROUTER_LOGITS, None)
        make_generation_config_savable(model, self.tokenizer)
        self._let_turns_end(model)
        return model

    def _let_turns_end(self, model: PreTrainedModel) -> None:
        """Where turns end with another token than the EOS, the saved model has to stop at both."""
        end, config = turn_end(self.tokenizer), getattr(model, "generation_config", None)
        if end is None or end == self.tokenizer.eos_token or config is None:
            return
        now = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
        ends = [self.tokenizer.eos_token_id, *now, self.tokenizer.convert_tokens_to_ids(end)]
        config.eos_token_id = list(dict.fromkeys(token for token in ends if token is not None))
        if self.args.process_index == 0:
            tell(
                self.data,
                "The chat template ends turns with '{end}', the tokenizer's EOS is '{eos}': the saved generation "
                "config stops at both ({ids})",
                end=end,
                eos=self.tokenizer.eos_token,
                ids=config.eos_token_id,
            )

    def _check_vocabulary(self, model: PreTrainedModel) -> None:
        """The labels of ids that the model does not embed would be an index error within training."""
        embedded = model.get_input_embeddings().num_embeddings
        if len(self.tokenizer) > embedded:
            raise ValueError(
                f"The tokenizer of {self.model_config.model_name_or_path} has {len(self.tokenizer)} tokens, the model "
                f"embeds {embedded}. Use the model's own tokenizer, or save the model again after "
                "model.resize_token_embeddings(len(tokenizer))."
            )

    def run(
        self,
        trainer_class: type[Trainer],
        model: PreTrainedModel,
        check: Check,
        encode: Encode,
        next_command: Sequence[str] | None = None,
    ) -> None:
        """Trains on the data, saves, writes the report, and prints what comes next and one JSON line.

        Args:
            trainer_class: One of trl's.
            model (`PreTrainedModel`): The model to train.
            check (`Callable`): Checks a row, given with its place, before anything is encoded.
            encode (`Callable`): Turns a row and its number into the columns that the trainer takes.
            next_command (`Sequence[str]`, *optional*): What comes next: arguments of `minimind-hf`. Unset: talk to
                the model.
        """
        is_first = self.args.process_index == 0
        with moving(f"encoding {self.data.dataset_name}", is_first):
            data = self._load_data(check, encode)
        with moving("preparing the data for the trainer", is_first):
            trainer = guarded(trainer_class)(
                model=model,
                args=self.args,
                processing_class=self.tokenizer,
                peft_config=get_peft_config(self.model_config),
                language=self.data.language,
                **data,
            )
        self._check_what_is_left(trainer, data)
        files = RunFiles(self.args, trainer.accelerator, lambda: self._described(trainer), self.data.language)
        files.says_where = False  # below, once the model is saved
        trainer.add_callback(files)
        with files.recording(lambda: trainer.state):
            trained = trainer.train(resume_from_checkpoint=self.args.resume_from_checkpoint)
        config = trainer.accelerator.unwrap_model(trainer.model).config
        if hasattr(config, ROUTER_LOGITS):
            setattr(config, ROUTER_LOGITS, self._router_logits)  # trl switched them on for training
        trainer.save_model(self.args.output_dir)
        if self.args.push_to_hub:
            trainer.push_to_hub(dataset_name=self.data.dataset_name)
        trainer.end()
        if trainer.is_world_process_zero():
            folder = self.args.output_dir
            with speaking(self.data.language):
                print("\n".join(closing_lines(folder, folder, command=next_command)), flush=True)
            print(json.dumps(self._result(trainer, trained.training_loss)), flush=True)

    def _described(self, trainer: Trainer) -> dict[str, Any]:
        """What run.json says of the run."""
        of_data = {name: value for name, value in vars(self.data).items() if value is not None and name != "language"}
        described = described_run_on_data(trainer, LABELS[self._name], of_data)
        changed = _changed(self._given, self.data, self.args, self.model_config)
        return {**described, "about": about_run(trainer), "changed": changed}

    def _load_data(self, check: Check, encode: Encode) -> dict[str, datasets.Dataset]:
        """Loads training data and, if the settings ask for evaluations, evaluation data."""
        data = self.data
        sets = {"train_dataset": self._load(data.dataset_name, data.dataset_train_split, check, encode)}
        if will_evaluate(self.args):
            source = data.eval_dataset_name or data.dataset_name
            split = data.dataset_test_split or ("train" if data.eval_dataset_name else "test")
            with explaining_evaluation():
                sets["eval_dataset"] = self._load(source, split, check, encode)
        return sets

    def _load(self, source: str, split: str, check: Check, encode: Encode) -> datasets.Dataset:
        rows = load_rows(source, check, name=self.data.dataset_config, split=split)
        shared = shared_field_columns(rows)

        def encoded(row: Mapping[str, Any], index: int) -> dict[str, Any]:
            return encode(own_fields(row, shared), index)

        return self._cut(
            rows.map(encoded, with_indices=True, remove_columns=rows.column_names, desc="Encoding"), source
        )

    def _cut(self, rows: datasets.Dataset, source: str) -> datasets.Dataset:
        """Says how many rows `max_length` cuts, or leaves them out."""
        limit, packing = self.args.max_length, getattr(self.args, "packing", False)
        of_reward_model = "chosen_ids" in rows.column_names and "prompt_ids" not in rows.column_names
        if limit is None or of_reward_model or (packing and self.args.packing_strategy != "bfd"):
            return rows  # a reward model's rows are dropped by trl, and packing by wrapping loses nothing
        kept = [number for number, row in enumerate(rows) if self._length(row) <= limit]
        cut, drops = len(rows) - len(kept), self.data.drop_longer
        if cut and drops and not kept:
            raise ValueError(
                f"All {cut} rows of {source} are longer than max_length={limit}, so drop_longer leaves none. Raise "
                "--max_length, or give shorter rows."
            )
        if cut and self.args.process_index == 0:
            text = (
                "{cut} of the {rows} rows of {source} are longer than {limit} tokens and are left out (drop_longer)"
                if drops
                else "{cut} of the {rows} rows of {source} are longer than {limit} tokens and are cut (max_length): "
                "what comes after is not learned, nor that an answer ends. Raise --max_length, or leave them out with "
                "--drop_longer true"
            )
            tell(self.data, text, cut=cut, rows=len(rows), source=source, limit=limit)
        return rows.select(kept) if cut and drops else rows

    def _length(self, row: Mapping[str, Any]) -> int:
        if "input_ids" in row:
            return len(row["input_ids"])
        return len(row["prompt_ids"]) + max(len(row["chosen_ids"]), len(row["rejected_ids"]))

    def _check_what_is_left(self, trainer: Trainer, given: dict[str, datasets.Dataset]) -> None:
        """trl drops rows in which `max_length` leaves nothing to learn, in the worst case all of them."""
        for name, before in given.items():
            kept, limit = len(getattr(trainer, name)), f"max_length={self.args.max_length}"
            if kept == 0:
                raise ValueError(
                    f"Nothing is left of the {len(before)} rows of the {name}: {limit} leaves nothing to learn "
                    "in any of them. Raise --max_length, or give shorter rows."
                )
            packs = getattr(self.args, "packing", False)  # several rows become one
            if kept < len(before) and not packs and trainer.is_world_process_zero():
                tell(
                    self.data,
                    "{dropped} of the {rows} rows of the {name} are dropped: {limit} leaves nothing to learn in them",
                    dropped=len(before) - kept,
                    rows=len(before),
                    name=name,
                    limit=limit,
                )

    def _result(self, trainer: Trainer, train_loss: float) -> dict[str, Any]:
        last = {name: value for log in trainer.state.log_history for name, value in log.items()}
        return {
            "recipe": self._name,
            "steps": trainer.state.global_step,
            "train_loss": round(train_loss, 4),
            **{name: round(last[name], 4) for name in MEASURES if name in last},
            "seconds": round(time.perf_counter() - self._start, 1),
            "output_dir": self.args.output_dir,
        }


def _changed(given: Collection[str], *settings: Any) -> dict[str, Any]:
    """The settings that were given and are not at their defaults, without secrets."""
    found = ((field, getattr(each, field.name)) for each in settings for field in fields(each) if field.name in given)
    values = {field.name: getattr(value, "value", value) for field, value in found if differs(value, field)}
    return json.loads(json.dumps(without_secrets(values), default=str))


def _check_max_length(args: TrainingArguments) -> None:
    limit = getattr(args, "max_length", None)
    if limit is not None and limit < 1:
        raise ValueError(f"--max_length is {limit}, and a row needs at least 1 token. Raise it, or leave it out.")


def _avoid_deprecated_default(parser: RecipeParser, given: Sequence[str]) -> None:
    """Moves trl's default from a name that transformers warns about to the new name, unless either is given."""
    flags, config = split_config(given)
    if any("gradient_checkpointing" in name for name in (*flags, *config)):
        return
    default = parser.get_default("gradient_checkpointing")
    parser.set_defaults_with_config(gradient_checkpointing=None, activation_checkpointing=default)
