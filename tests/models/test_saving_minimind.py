# SPDX-License-Identifier: Apache-2.0
"""Saved folders: MiniMind's names, the Auto classes, code that travels along, heads on a trunk."""

import json
import os
import sys

import pytest
import torch
from launching import Running
from reference_minimind import rms_norm
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)
from transformers.dynamic_module_utils import get_class_from_dynamic_module

from minimind_hf import models
from minimind_hf.models.convert import convert
from minimind_hf.models.pth import expected_shapes

IDS = torch.tensor([[5, 9, 0, 33, 71, 2, 8, 90]])

# Loads every folder given on the command line and prints the logits. A finder at the front of the import path makes
# minimind_hf impossible to import even where it is installed.
FRESH_INTERPRETER = """
import json, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "minimind_hf":
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Blocked())
try:
    import minimind_hf
except ModuleNotFoundError:
    pass
else:
    raise SystemExit("minimind_hf could be imported")

import torch
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification

request = json.loads(sys.argv[1])
ids = torch.tensor(request["ids"])
answer = {}
for folder, remote in request["folders"].items():
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=remote, dtype=torch.float32)
    answer[folder] = model(ids).logits.tolist()
    if remote:
        model.save_pretrained(folder + "-again")
        critic = AutoModelForTokenClassification.from_pretrained(folder, trust_remote_code=True, num_labels=1)
        assert critic(ids).logits.shape == (1, ids.shape[1], 1)
print(json.dumps(answer))
"""


@pytest.fixture
def saved(tiny_minimind, tmp_path):
    def save(**overrides):
        model = tiny_minimind(**overrides)
        model.save_pretrained(tmp_path / "model")
        return model, tmp_path / "model"

    return save


def tensor_names(folder):
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        return set(file.keys())


@pytest.mark.parametrize("moe", [False, True])
def test_files_keep_minimind_s_parameter_names(saved, moe):
    model, folder = saved(use_moe=moe)
    names = tensor_names(folder)
    assert names == set(expected_shapes(model.config)) - {"lm_head.weight"}
    expert = "model.layers.1.mlp.experts.3.gate_proj.weight"
    assert (expert in names) == moe
    if moe:
        stored = load_file(folder / "model.safetensors")[expert]
        torch.testing.assert_close(stored, model.model.layers[1].mlp.experts.gate_up_proj[3, :48], rtol=0, atol=0)


@pytest.mark.parametrize("overrides", [{}, {"use_moe": True}, {"tie_word_embeddings": False}])
def test_round_trip_is_exact(saved, overrides):
    model, folder = saved(**overrides)
    loaded, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    assert type(loaded) is models.MiniMindForCausalLM
    expected = model.state_dict()
    assert loaded.state_dict().keys() == expected.keys()
    for name, tensor in loaded.state_dict().items():
        assert torch.equal(tensor, expected[name]), name  # the pad row among them
    assert (loaded.lm_head.weight is loaded.model.embed_tokens.weight) == model.config.tie_word_embeddings


def test_every_auto_class_knows_minimind(saved):
    _, folder = saved()
    assert type(AutoConfig.from_pretrained(folder)) is models.MiniMindConfig
    expected = {
        AutoModel: models.MiniMindModel,
        AutoModelForCausalLM: models.MiniMindForCausalLM,
        AutoModelForSequenceClassification: models.MiniMindForSequenceClassification,
        AutoModelForTokenClassification: models.MiniMindForTokenClassification,
    }
    for auto_class, model_class in expected.items():
        assert type(auto_class.from_pretrained(folder)) is model_class


def test_registering_again_changes_nothing(saved):
    models.register()
    models.register()
    _, folder = saved(use_moe=True)
    assert type(AutoModelForCausalLM.from_pretrained(folder)) is models.MiniMindForCausalLM


def test_folder_carries_code_for_every_auto_class(saved):
    _, folder = saved()
    auto_map = json.loads((folder / "config.json").read_text())["auto_map"]
    assert set(auto_map) == {
        "AutoConfig",
        "AutoModel",
        "AutoModelForCausalLM",
        "AutoModelForSequenceClassification",
        "AutoModelForTokenClassification",
    }
    for reference in auto_map.values():
        module, class_name = reference.split(".")
        assert f"class {class_name}(" in (folder / f"{module}.py").read_text()


def test_installed_package_wins_over_the_carried_code_and_both_live_together(saved, tmp_path, monkeypatch):
    model, folder = saved(use_moe=True)
    trusting = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    assert type(trusting) is models.MiniMindForCausalLM
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    remote_class = get_class_from_dynamic_module("modeling_minimind.MiniMindForCausalLM", folder)
    assert remote_class is not models.MiniMindForCausalLM
    remote = remote_class.from_pretrained(folder)
    assert torch.equal(remote(IDS).logits, model(IDS).logits)


@pytest.mark.parametrize("missing_head", [AutoModelForSequenceClassification, AutoModelForTokenClassification])
@pytest.mark.parametrize("tied", [True, False])
def test_classifier_from_a_causal_lm_has_only_a_new_head(saved, missing_head, tied):
    policy, folder = saved(tie_word_embeddings=tied)
    classifier, report = missing_head.from_pretrained(folder, num_labels=1, output_loading_info=True)
    assert {name.partition(".")[0] for name in report["missing_keys"]} == {"score"}
    assert not report["unexpected_keys"]
    for name, tensor in classifier.model.state_dict().items():
        assert torch.equal(tensor, policy.model.state_dict()[name])


def test_token_classifier_applies_the_final_norm_once(saved):
    policy, folder = saved()
    critic = AutoModelForTokenClassification.from_pretrained(folder, num_labels=1).train()
    before_norm = []
    critic.model.norm.register_forward_pre_hook(lambda module, inputs: before_norm.append(inputs[0]))
    values = critic(IDS).logits
    assert len(before_norm) == 1
    normed = rms_norm(before_norm[0], policy.model.norm.weight, policy.config.rms_norm_eps)
    torch.testing.assert_close(values, normed @ critic.score.weight.T + critic.score.bias, atol=1e-5, rtol=1e-5)
    assert torch.equal(values, critic(IDS).logits)  # no dropout, although it trains


def test_sequence_classifier_reads_the_last_real_token(saved):
    _, folder = saved()
    classifier = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=1)
    alone = classifier(torch.tensor([[5, 9, 33]])).logits
    ids, mask = torch.tensor([[0, 0, 5, 9, 33]]), torch.tensor([[0, 0, 1, 1, 1]])
    torch.testing.assert_close(classifier(ids, attention_mask=mask).logits, alone, atol=1e-5, rtol=1e-5)


def test_fresh_interpreter_loads_both_folders_without_the_package(saved, tmp_path):
    model, folder = saved(
        use_moe=True, num_experts_per_tok=2, inference_rope_scaling=True, max_position_embeddings=4096
    )
    convert(folder, tmp_path / "qwen", to="qwen3")
    request = {"ids": IDS.tolist(), "folders": {str(folder): True, str(tmp_path / "qwen"): False}}
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"HF_MODULES_CACHE": str(tmp_path / "modules"), "HF_HUB_OFFLINE": "1"}
    run = Running([sys.executable, "-c", FRESH_INTERPRETER, json.dumps(request)], environment, elsewhere).finish()
    answer = json.loads(run.stdout.splitlines()[-1])
    expected = model(IDS).logits
    for logits in answer.values():
        torch.testing.assert_close(torch.tensor(logits), expected, atol=1e-6, rtol=1e-6)
    again = tmp_path / "model-again"  # saved there by the carried code: same names, same code
    assert tensor_names(again) == tensor_names(folder)
    assert (again / "modeling_minimind.py").read_text() == (folder / "modeling_minimind.py").read_text()
