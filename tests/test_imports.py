# SPDX-License-Identifier: Apache-2.0
"""What importing the package costs and does: nothing heavy is imported, and still the Auto classes know MiniMind."""

import importlib
import os
import pickle
import sys
from collections import OrderedDict
from importlib.machinery import SourceFileLoader

import pytest
import torch
from launching import Running
from naming import raises_naming
from transformers import AutoConfig
from transformers.models.auto.auto_factory import _LazyAutoMapping
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES, _LazyConfigMapping

import minimind_hf
from minimind_hf import MiniMindConfig, import_hooks
from minimind_hf.cli import COMMANDS
from minimind_hf.models import registration

LIGHT = """
import sys
heavy = {"torch", "transformers", "accelerate", "datasets", "trl", "peft"} & set(sys.modules)
assert not heavy, heavy
"""
CHECK = """
import pickle
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification
import minimind_hf

sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
config = AutoConfig.for_model("minimind", vocab_size=32, **sizes)
assert type(config) is minimind_hf.MiniMindConfig
auto_classes = AutoModel, AutoModelForCausalLM, AutoModelForSequenceClassification, AutoModelForTokenClassification
for auto_class in auto_classes:
    ours = getattr(minimind_hf, auto_class.__name__.replace("AutoModelFor", "MiniMindFor").replace("Auto", "MiniMind"))
    assert type(auto_class.from_config(config)) is ours
    assert ours._auto_class == auto_class.__name__  # saved folders carry the code
assert type(config)._auto_class == "AutoConfig"
"""
RELOADED = """
import importlib, transformers.models.auto.configuration_auto as module
importlib.reload(minimind_hf)
assert importlib.reload(module).CONFIG_MAPPING["minimind"] is minimind_hf.MiniMindConfig
"""


def run_python(code: str) -> str:
    return Running([sys.executable, "-c", code]).finish().stdout


def test_importing_is_light():
    rooms = "from minimind_hf import health, reports\nfrom minimind_hf.health import checks, rules, monitor\n"
    run_python("import minimind_hf\nfrom minimind_hf import models\n" + rooms + LIGHT)


OF_PARSER = ("chat", "convert", "estimate", "eval")  # commands whose flags HfArgumentParser makes


def assert_command_imports_nothing(arguments: list[str], status: int, check: str) -> None:
    run_python(f"""
from minimind_hf.cli import main
try:
    status = main({arguments})
except SystemExit as stopped:
    status = stopped.code
assert status == {status}
{check}""")


@pytest.mark.parametrize(
    ("arguments", "status"),
    [([], 2), (["--help"], 0), (["report", "absent"], 1)]
    + [([command, "--help"], 0) for command in COMMANDS if command not in OF_PARSER],
)
def test_command_line_is_light(arguments, status):
    assert_command_imports_nothing(arguments, status, LIGHT)


@pytest.mark.parametrize(
    ("arguments", "status"),
    [(["chat", "absent", "--yes"], 1), (["estimate"], 2), *(([command, "--help"], 0) for command in OF_PARSER)],
)
def test_a_parser_of_transformers_is_all_that_a_help_needs(arguments, status):
    """Of transformers that module alone: to show a help, or to refuse a flag, no model is imported."""
    assert_command_imports_nothing(arguments, status, LIGHT.replace('"transformers", ', ""))


@pytest.mark.parametrize(
    "start",
    [
        "import minimind_hf\n" + LIGHT + "from transformers import AutoModelForCausalLM",
        "from transformers import AutoModelForCausalLM\nimport minimind_hf",
        # transformers.modeling_layers is being imported when the Auto classes are, and MiniMind's models need it
        "import minimind_hf\nfrom transformers import LlamaForCausalLM",
        # as a spawned process gets its arguments
        f"import pickle\nassert pickle.loads({pickle.dumps(MiniMindConfig(vocab_size=77))}).vocab_size == 77",
    ],
    ids=["minimind first", "transformers first", "in the middle of transformers", "a pickled config first"],
)
def test_auto_classes_know_minimind_whatever_is_imported_first(start):
    run_python(start + CHECK + (RELOADED if start.startswith("from transformers") else ""))


def test_names_stand_where_the_classes_do():
    assert MiniMindConfig.model_type == registration.MODEL_TYPE
    for module, name in (registration.CONFIG, *registration.MODELS.values()):
        assert getattr(minimind_hf, name) is getattr(importlib.import_module(module), name)
    assert set(minimind_hf.__all__) <= set(dir(minimind_hf))
    for name in minimind_hf.__all__:
        assert getattr(minimind_hf, name).__name__ == name
    with raises_naming(AttributeError, "'MiniMindForVision'"):
        _ = minimind_hf.MiniMindForVision


class OtherConfig(MiniMindConfig):
    pass


@pytest.fixture
def mapping():
    """A mapping of configs, as transformers makes it, in which MiniMind is registered but not loaded."""
    mapping = _LazyConfigMapping({"llama": "LlamaConfig"})
    registration._register_config(type("module", (), {"CONFIG_MAPPING": mapping}))
    return mapping


@pytest.mark.parametrize(
    "look",
    [
        lambda mapping: mapping["minimind"] is MiniMindConfig,
        lambda mapping: "minimind" in mapping,
        lambda mapping: "minimind" in list(mapping),
        lambda mapping: "minimind" in set(mapping._extra_content.keys()),
        lambda mapping: MiniMindConfig in mapping.values(),
        lambda mapping: ("minimind", MiniMindConfig) in mapping.items(),
        lambda mapping: mapping._extra_content.get("minimind") is MiniMindConfig,
        lambda mapping: len(mapping._extra_content) == 1,
        lambda mapping: pickle.loads(pickle.dumps(mapping))["minimind"] is MiniMindConfig,
    ],
)
def test_every_look_into_a_mapping_finds_minimind(mapping, look):
    assert look(mapping)
    assert look(mapping)


def test_other_keys_load_nothing(mapping):
    assert "absent" not in mapping and "llama" in mapping
    assert dict.__len__(mapping._extra_content) == 0


def test_what_is_registered_later_wins_until_minimind_is_registered_again(mapping):
    mapping.register("minimind", OtherConfig)
    assert mapping["minimind"] is OtherConfig
    registration._register_config(type("module", (), {"CONFIG_MAPPING": mapping}))
    assert mapping["minimind"] is MiniMindConfig
    mapping.register("minimind", OtherConfig)
    mapping.register("other", OtherConfig)
    assert mapping["minimind"] is OtherConfig and mapping["other"] is OtherConfig


def test_models_are_found_by_our_config_alone():
    mapping = _LazyAutoMapping(CONFIG_MAPPING_NAMES, OrderedDict())
    auto_class = type("Auto", (), {"_model_mapping": mapping})
    registration._register_models(type("module", (), dict.fromkeys(registration.MODELS, auto_class)))
    assert OtherConfig not in mapping and type("MiniMindConfig", (), {}) not in mapping
    assert dict.__len__(mapping._extra_content) == 0
    assert MiniMindConfig in mapping and len(mapping) == 1
    mapping.register(OtherConfig, minimind_hf.MiniMindForCausalLM)
    assert mapping[OtherConfig] is minimind_hf.MiniMindForCausalLM and len(mapping) == 2


def test_a_mapping_that_is_looked_at_during_the_import_answers_without_minimind(mapping, monkeypatch):
    monkeypatch.delattr("minimind_hf.models.configuration_minimind.MiniMindConfig")  # as far as the import has come
    assert "minimind" not in mapping and list(mapping) == ["llama"]
    monkeypatch.undo()
    assert mapping["minimind"] is MiniMindConfig


def test_the_mappings_of_transformers_are_ours(mapping):
    for _ in range(2):
        registration.register()
    assert type(CONFIG_MAPPING._extra_content) is type(mapping._extra_content)
    assert AutoConfig.for_model("minimind").model_type == "minimind"


@pytest.fixture
def module_file(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "hooked_module.py"
    path.write_text("import builtins\nvalue = getattr(builtins, 'hooked_value', 0)\n")
    yield path
    sys.modules.pop("hooked_module", None)
    for calls in (import_hooks._finder().before, import_hooks._finder().after):
        calls.pop("hooked_module", None)


def test_functions_are_called_around_each_import(module_file, monkeypatch):
    calls = []
    monkeypatch.setattr("builtins.hooked_value", 1, raising=False)
    import_hooks.before_import("hooked_module", lambda: calls.append("before"))
    import_hooks.after_import("hooked_module", lambda module: calls.append(module.value))
    assert importlib.util.find_spec("hooked_module").loader.get_filename("hooked_module") == str(module_file)
    assert calls == []  # found is not imported
    module = importlib.import_module("hooked_module")
    assert calls == ["before", 1]
    assert isinstance(module.__loader__, SourceFileLoader) and module.__spec__.loader is module.__loader__
    importlib.import_module("hooked_module")
    importlib.reload(module)
    assert calls == ["before", 1] * 2


def test_a_module_that_is_there_counts_as_imported(module_file):
    calls = []
    importlib.import_module("hooked_module")
    import_hooks.before_import("hooked_module", lambda: calls.append("before"))
    import_hooks.after_import("hooked_module", lambda module: calls.append(module.__name__))
    assert calls == ["hooked_module"]


def test_an_import_that_fails_calls_nothing_and_can_be_repeated(module_file):
    calls = []
    import_hooks.after_import("hooked_module", lambda module: calls.append(module.__name__))
    good = module_file.read_text()
    module_file.write_text("raise ValueError('broken module')\n")
    with raises_naming(ValueError, "broken module"):
        importlib.import_module("hooked_module")
    assert calls == [] and "hooked_module" not in sys.modules
    module_file.write_text(good + "# longer than before\n")
    importlib.invalidate_caches()
    importlib.import_module("hooked_module")
    assert calls == ["hooked_module"]


def test_reloading_keeps_one_finder():
    finder = import_hooks._finder()
    importlib.reload(import_hooks)
    importlib.reload(minimind_hf)
    assert import_hooks._finder() is finder
    assert sum(type(each).__module__ == import_hooks.__name__ for each in sys.meta_path) == 1


@pytest.mark.parametrize("given", [None, "cuda"])
def test_deepspeed_is_told_of_the_cpu_when_it_is_imported(given, monkeypatch):
    monkeypatch.delenv("DS_ACCELERATOR", raising=False)
    if given:
        monkeypatch.setenv("DS_ACCELERATOR", given)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: None)
    import_hooks._finder().before["deepspeed"]()
    assert os.environ["DS_ACCELERATOR"] == (given or "cpu")
