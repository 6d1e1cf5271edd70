# SPDX-License-Identifier: Apache-2.0
"""Conversion: bit-exact round trips, same logits in every format, and clear refusals."""

import json
import pickle
import shutil

import pytest
import torch
from naming import raises_naming
from safetensors.torch import load_file
from tiny import make_tokenizer
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)
from transformers.core_model_loading import revert_weight_conversion

from minimind_hf.models import MiniMindConfig, MiniMindForCausalLM
from minimind_hf.models.convert import convert, read_checkpoint
from minimind_hf.models.described import tokenizer_faults
from minimind_hf.models.pth import ConversionError, expected_shapes, infer_config, save_tensors

SIZES = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
# What the tensors do not tell is given as an override, as a user would.
KINDS = {
    "dense": ({}, {}),
    "untied": ({"tie_word_embeddings": False}, {}),
    "moe_top1": ({"use_moe": True}, {}),
    "moe_top2": ({"use_moe": True}, {"num_experts_per_tok": 2}),
    "yarn": ({}, {"inference_rope_scaling": True, "max_position_embeddings": 4096}),
    "moe_yarn": ({"use_moe": True}, {"inference_rope_scaling": True, "num_experts_per_tok": 2}),
    "wide_heads": ({"head_dim": 16}, {}),
}
kinds = pytest.mark.parametrize("kind", KINDS)
IDS = torch.randint(0, 96, (2, 40), generator=torch.Generator().manual_seed(3))


def minimind_tensors(dtype=torch.float16, **sizes):
    """The state dict of a random MiniMind, as its trainer would save it: half precision, the tied head stored too."""
    config = MiniMindConfig(**{**SIZES, **sizes})
    generator = torch.Generator().manual_seed(5)
    tensors = {
        name: (torch.randn(shape, generator=generator) * 0.2 + name.endswith("norm.weight")).to(dtype)
        for name, shape in expected_shapes(config).items()
    }
    if config.tie_word_embeddings:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    return tensors


@pytest.fixture
def pth(tmp_path):
    def write(**sizes):
        torch.save(minimind_tensors(**sizes), tmp_path / "source.pth")
        return tmp_path / "source.pth"

    return write


@pytest.mark.parametrize("moe", [False, True])
def test_names_shapes_and_order_are_those_of_minimind_s_files(moe):
    attention = {"q_proj": (32, 32), "k_proj": (16, 32), "v_proj": (16, 32), "o_proj": (32, 32)}
    attention |= {"q_norm": (8,), "k_norm": (8,)}
    feed_forward = {"gate_proj": (48, 32), "down_proj": (32, 48), "up_proj": (48, 32)}
    expected = {"model.embed_tokens": (96, 32)}
    for layer in ("model.layers.0", "model.layers.1"):
        expected |= {f"{layer}.self_attn.{name}": shape for name, shape in attention.items()}
        expected |= {f"{layer}.input_layernorm": (32,), f"{layer}.post_attention_layernorm": (32,)}
        if moe:
            expected[f"{layer}.mlp.gate"] = (11, 32)
        for part in [f"mlp.experts.{expert}" for expert in range(11)] if moe else ["mlp"]:
            expected |= {f"{layer}.{part}.{name}": shape for name, shape in feed_forward.items()}
    expected |= {"model.norm": (32,), "lm_head": (96, 32)}
    config = MiniMindConfig(**{**SIZES, "use_moe": moe, "num_experts": 11})
    found = expected_shapes(config)
    assert list(found.items()) == [(f"{name}.weight", shape) for name, shape in expected.items()]


def assert_same_tensors(first, second):
    assert list(first) == list(second)
    for name, tensor in first.items():
        assert tensor.dtype == second[name].dtype and torch.equal(tensor, second[name]), name


@kinds
def test_pth_folder_qwen3_and_back_is_bit_identical_with_the_same_logits(pth, tmp_path, kind):
    sizes, overrides = KINDS[kind]
    source = pth(**sizes)
    minimind = convert(source, tmp_path / "minimind", config=overrides)
    qwen3 = convert(minimind, tmp_path / "qwen3", to="qwen3")
    returned = convert(qwen3, tmp_path / "returned", to="minimind")
    convert(minimind, tmp_path / "a.pth")
    convert(returned, tmp_path / "b.pth")
    original = torch.load(source, weights_only=True)
    for written in ("a.pth", "b.pth"):
        assert_same_tensors(original, torch.load(tmp_path / written, weights_only=True))
    assert (returned / "config.json").read_text() == (minimind / "config.json").read_text()

    loaded = [AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32) for folder in (minimind, qwen3)]
    assert type(loaded[0]) is MiniMindForCausalLM
    assert type(loaded[1]) is (Qwen3MoeForCausalLM if sizes.get("use_moe") else Qwen3ForCausalLM)
    with torch.no_grad():
        ours, theirs = (model(IDS).logits for model in loaded)
    assert ours.std() > 0.3
    torch.testing.assert_close(theirs, ours, atol=1e-6, rtol=1e-6)
    for name, value in overrides.items():
        assert getattr(loaded[0].config, name) == value


@pytest.mark.parametrize("name", ["dense", "dense_yarn", "moe_top1", "moe_top2"])
def test_golden_checkpoints_through_every_format(golden_dir, tmp_path, name):
    folder = golden_dir / "minimind"
    golden = load_file(folder / f"{name}.safetensors")
    given = json.loads((folder / "cases.json").read_text())[name]["config"]
    untold = ("num_experts_per_tok", "inference_rope_scaling", "max_position_embeddings")
    overrides = {key: value for key, value in given.items() if key in untold}
    minimind = convert(folder / f"{name}.pth", tmp_path / "minimind", config=overrides)
    qwen3 = convert(folder / f"{name}.pth", tmp_path / "qwen3", to="qwen3", config=overrides)
    convert(qwen3, tmp_path / "again.pth")
    assert_same_tensors(
        torch.load(folder / f"{name}.pth", weights_only=True), torch.load(tmp_path / "again.pth", weights_only=True)
    )
    for converted in (minimind, qwen3):
        model = AutoModelForCausalLM.from_pretrained(converted, dtype=torch.float32)
        with torch.no_grad():
            logits = model(golden["input_ids"]).logits
            torch.testing.assert_close(logits, golden["logits"], atol=1e-4, rtol=0)
            if "long_input_ids" in golden:
                logits = model(golden["long_input_ids"], logits_to_keep=16).logits
                torch.testing.assert_close(logits, golden["long_logits_last16"], atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    "sizes",
    [
        {"hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 3, "num_hidden_layers": 3},
        {"use_moe": True, "num_experts": 3, "intermediate_size": 80, "vocab_size": 70},
        {"head_dim": 16},
    ],
)
def test_config_is_inferred_from_the_tensors(sizes):
    inferred = MiniMindConfig(**infer_config(minimind_tensors(**sizes)))
    expected = MiniMindConfig(**{**SIZES, **sizes})
    assert inferred.to_dict() == expected.to_dict()


def test_qwen3_folder_has_the_keys_that_other_readers_look_for(pth, tmp_path):
    sizes, overrides = KINDS["moe_yarn"]
    convert(pth(**sizes), tmp_path / "qwen3", to="qwen3", config=overrides)
    config = json.loads((tmp_path / "qwen3" / "config.json").read_text())
    assert config["num_experts"] == 4 and config["rope_theta"] == 1e6
    assert "auto_map" not in config
    assert not list((tmp_path / "qwen3").glob("*.py"))
    # SGLang and vLLM scale by (0.1 * ln 16 + 1) * attn_factor, which must be MiniMind's 1.0
    assert 1.2772588722239782 * config["rope_scaling"]["attn_factor"] == pytest.approx(1.0, abs=1e-12)
    assert config["rope_scaling"]["attention_factor"] == 1.0


def test_dtype_is_kept_unless_told(pth, tmp_path):
    source = pth(dtype=torch.bfloat16)

    def dtype_of(folder):
        return load_file(folder / "model.safetensors")["model.norm.weight"].dtype

    kept = convert(source, tmp_path / "kept")
    assert dtype_of(kept) == torch.bfloat16
    assert json.loads((kept / "config.json").read_text())["dtype"] == "bfloat16"
    assert dtype_of(convert(source, tmp_path / "cast", dtype="float32")) == torch.float32
    half = torch.load(convert(kept, tmp_path / "half.pth"), weights_only=True)
    assert {tensor.dtype for tensor in half.values()} == {torch.float16}
    same = torch.load(convert(kept, tmp_path / "same.pth", dtype="bfloat16"), weights_only=True)
    assert_same_tensors(torch.load(source, weights_only=True), same)


def test_tied_head_is_stored_once_in_a_folder_and_twice_in_a_pth(pth, tmp_path):
    folder = convert(pth(), tmp_path / "folder")
    assert "lm_head.weight" not in load_file(folder / "model.safetensors")
    tensors = torch.load(convert(folder, tmp_path / "again.pth"), weights_only=True)
    assert torch.equal(tensors["lm_head.weight"], tensors["model.embed_tokens.weight"])


def test_pth_without_a_stored_head_is_tied(tmp_path):
    tensors = minimind_tensors()
    del tensors["lm_head.weight"]
    torch.save(tensors, tmp_path / "source.pth")
    assert read_checkpoint(tmp_path / "source.pth").config.tie_word_embeddings


def test_resume_file_gives_its_weights(tmp_path):
    tensors = minimind_tensors()
    torch.save({"model": tensors, "optimizer": {"state": {}}, "epoch": 3}, tmp_path / "resume.pth")
    assert_same_tensors(
        read_checkpoint(tmp_path / "resume.pth").weights,
        {name: tensor for name, tensor in tensors.items() if name != "lm_head.weight"},
    )


@pytest.mark.parametrize("file", ["pytorch_model.bin", "model.safetensors"])
def test_folder_saved_by_minimind_s_own_script(tmp_path, file):
    """Its config keys, its code reference, its tied head stored beside the embedding."""
    folder = tmp_path / "theirs"
    folder.mkdir()
    tensors = minimind_tensors(use_moe=True)
    config = {
        **{**SIZES, "use_moe": True, "num_experts": 4, "num_experts_per_tok": 2, "head_dim": 8},
        **{"model_type": "minimind", "flash_attn": True, "dropout": 0.0, "rope_theta": 1e6, "rope_scaling": None},
        **{"inference_rope_scaling": False, "torch_dtype": "float16", "max_position_embeddings": 32768},
        "auto_map": {
            "AutoConfig": "model_minimind.MiniMindConfig",
            "AutoModelForCausalLM": "model_minimind.MiniMindForCausalLM",
        },
    }
    (folder / "config.json").write_text(json.dumps(config))
    if file.endswith(".bin"):
        torch.save(tensors, folder / file)
    else:
        from safetensors.torch import save_file

        save_file({name: tensor.clone() for name, tensor in tensors.items()}, folder / file, metadata={"format": "pt"})
    model, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert type(model) is MiniMindForCausalLM and not report["missing_keys"] and not report["unexpected_keys"]
    written = torch.load(convert(folder, tmp_path / "out.pth"), weights_only=True)
    assert_same_tensors(tensors, written)


def test_tokenizer_and_generation_config_go_along(pth, tmp_path):
    tokenizer = tmp_path / "tokenizer"
    tokenizer.mkdir()
    (tokenizer / "tokenizer.json").write_text('{"any": "bytes"}')
    (tokenizer / "tokenizer_config.json").write_text("{}")
    (tokenizer / "notes.txt").write_text("not part of it")
    folder = convert(pth(), tmp_path / "folder", tokenizer=tokenizer)
    generation = folder / "generation_config.json"
    assert json.loads(generation.read_text())["eos_token_id"] == 2
    generation.write_text(json.dumps({"eos_token_id": [2, 7], "pad_token_id": 0, "bos_token_id": 1}))
    qwen3 = convert(folder, tmp_path / "qwen3", to="qwen3")
    assert (qwen3 / "tokenizer.json").read_text() == '{"any": "bytes"}'
    assert not (qwen3 / "notes.txt").exists()
    assert json.loads((qwen3 / "generation_config.json").read_text())["eos_token_id"] == [2, 7]


def test_overrides_change_what_a_folder_says(pth, tmp_path):
    folder = convert(pth(), tmp_path / "folder", config={"rope_theta": 1e5})
    yarn = convert(folder, tmp_path / "yarn", config={"inference_rope_scaling": True})
    rope = AutoConfig.from_pretrained(yarn).rope_parameters
    assert (rope["rope_type"], rope["rope_theta"]) == ("yarn", 1e5)
    other = AutoConfig.from_pretrained(convert(yarn, tmp_path / "other", config={"rope_theta": 2e5})).rope_parameters
    assert (other["rope_type"], other["rope_theta"]) == ("yarn", 2e5)
    plain = convert(yarn, tmp_path / "plain", config={"inference_rope_scaling": False})
    assert AutoConfig.from_pretrained(plain).rope_parameters == {"rope_type": "default", "rope_theta": 1e5}


def test_overwriting_leaves_no_stale_weights(pth, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "model-00001-of-00002.safetensors").write_text("old")
    (folder / "notes.txt").write_text("mine")
    (folder / "adapter_config.json").write_text("{}")
    with raises_naming(ConversionError, folder, "exists"):
        convert(pth(), folder)
    convert(pth(), folder, overwrite=True)
    assert [file.name for file in folder.glob("*.safetensors")] == ["model.safetensors"]
    assert (folder / "notes.txt").read_text() == "mine"
    assert not (folder / "adapter_config.json").exists()
    assert not list(tmp_path.glob(".folder-*"))


def test_failure_leaves_nothing_behind(pth, tmp_path, monkeypatch):
    monkeypatch.setattr(MiniMindForCausalLM, "save_pretrained", lambda *arguments: 1 / 0)
    source = pth()
    with pytest.raises(ZeroDivisionError):
        convert(source, tmp_path / "out")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["source.pth"]


# Refusals


def test_adapters_are_to_be_merged_first(tmp_path):
    (tmp_path / "adapter_config.json").write_text("{}")
    with raises_naming(ConversionError, tmp_path, "adapters", "merge_adapters=True", "merge_and_unload()"):
        convert(tmp_path, tmp_path / "out")
    (tmp_path / "merged").mkdir()
    with raises_naming(ConversionError, tmp_path, "adapters", tmp_path / "merged"):
        convert(tmp_path, tmp_path / "out")


class Exploit:
    """Unpickling it creates a file: a stand-in for any code."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return (open, (str(self.marker), "w"))


def test_pickle_that_would_run_code_is_refused_and_not_run(tmp_path):
    marker, source = tmp_path / "ran", tmp_path / "evil.pth"
    torch.save({"model.norm.weight": Exploit(marker)}, source)
    with raises_naming(ConversionError, source, "code", "torch.save(model.state_dict(), path)"):
        convert(source, tmp_path / "out")
    source.write_bytes(pickle.dumps(Exploit(marker)))
    with raises_naming(ConversionError, source, "code", "torch.save(model.state_dict(), path)"):
        convert(source, tmp_path / "out")
    assert not marker.exists() and not (tmp_path / "out").exists()


def broken(tmp_path, content):
    path = tmp_path / "broken.pth"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        torch.save(content, path)
    return path


def without(name):
    return {key: tensor for key, tensor in minimind_tensors().items() if key != name}


def with_value(name, value):
    return {**minimind_tensors(), name: value}


@pytest.mark.parametrize(
    "content, named",
    [
        (b"", ["broken.pth", "EOFError"]),
        (b"PK\x03\x04 not a whole archive", ["broken.pth", "zip archive"]),
        (b"no checkpoint at all", ["broken.pth", "code", "torch.save(model.state_dict(), path)"]),
        (torch.zeros(3), ["broken.pth", "Tensor"]),
        ({}, ["broken.pth", "empty"]),
        ({"weights": [1, 2]}, ["broken.pth", "weights", "model.state_dict()"]),
        ({"bert.weight": torch.zeros(2, 2)}, ["model.embed_tokens.weight", "bert.weight"]),
        (without("model.layers.0.self_attn.q_norm.weight"), ["model.layers.0.self_attn.q_norm.weight", 24]),
        (
            without("model.layers.1.mlp.up_proj.weight"),
            ["broken.pth", "1 tensors", "model.layers.1.mlp.up_proj.weight"],
        ),
        (
            with_value("model.layers.0.extra", torch.zeros(1)),
            ["broken.pth", "1 are unexpected", "model.layers.0.extra"],
        ),
        (
            with_value("model.layers.1.self_attn.o_proj.weight", torch.zeros(8, 8)),
            ["model.layers.1.self_attn.o_proj.weight", "(8, 8)", "(32, 32)"],
        ),
        (with_value("model.embed_tokens.weight", torch.zeros(8)), ["model.embed_tokens.weight", "(8,)", 2]),
        (with_value("model.layers.0.self_attn.q_norm.weight", torch.zeros(5)), [32, 16, 5, "q_norm"]),
    ],
)
def test_file_that_is_no_minimind_checkpoint(tmp_path, content, named):
    with raises_naming(ConversionError, *named):
        convert(broken(tmp_path, content), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_truncated_file(pth, tmp_path):
    whole = pth().read_bytes()
    with raises_naming(ConversionError, tmp_path / "broken.pth", "truncated"):
        convert(broken(tmp_path, whole[: len(whole) // 2]), tmp_path / "out")


@pytest.mark.parametrize(
    "options, named",
    [
        ({"to": "llama"}, ["target", "'llama'", "minimind", "qwen3", "pth"]),
        ({"to": "pth"}, ["pth", "out", ".pth"]),
        ({"dtype": "float8"}, ["dtype", "'float8'", "float16"]),
        ({"config": {"num_heads": 4}}, ["num_heads", "num_attention_heads"]),
        ({"config": {"num_hidden_layers": 3}}, ["source.pth", "11 tensors", "model.layers.2.self_attn.q_proj.weight"]),
        (
            {"config": {"hidden_size": 64, "head_dim": 8}},
            ["source.pth", "model.embed_tokens.weight", "(96, 32)", "(96, 64)"],
        ),
        ({"config": {"use_moe": True}}, ["source.pth", "26 tensors", "model.layers.0.mlp.gate.weight"]),
        ({"config": {"num_experts_per_tok": 9, "use_moe": True}}, ["num_experts_per_tok", 9, "num_experts", 4]),
        ({"tokenizer": "nowhere"}, ["nowhere", "tokenizer.json"]),
    ],
)
def test_wrong_options(pth, tmp_path, options, named):
    with raises_naming(ConversionError, *named):
        convert(pth(), tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_wrong_paths(pth, tmp_path):
    source = pth()
    with raises_naming(ConversionError, tmp_path / "absent.pth", "exist"):
        convert(tmp_path / "absent.pth", tmp_path / "out")
    with raises_naming(ConversionError, source, "both"):
        convert(source, source)
    with raises_naming(ConversionError, "minimind", tmp_path / "out.pth", "folder"):
        convert(source, tmp_path / "out.pth", to="minimind")
    with raises_naming(ConversionError, tmp_path, "config.json", "save_pretrained"):
        convert(tmp_path, tmp_path / "out.pth")
    (tmp_path / "file").write_text("")
    with raises_naming(ConversionError, tmp_path / "file", "folder"):
        convert(source, tmp_path / "file")
    (tmp_path / "taken.pth").write_text("")
    with raises_naming(ConversionError, tmp_path / "taken.pth", "exists"):
        convert(source, tmp_path / "taken.pth")


def test_tied_config_with_another_head(tmp_path, pth):
    source = pth(tie_word_embeddings=False)
    with raises_naming(ConversionError, "lm_head.weight", "model.embed_tokens.weight", "tie_word_embeddings=false"):
        convert(source, tmp_path / "out", config={"tie_word_embeddings": True})


def test_mixed_dtypes_need_a_choice(tmp_path):
    source = broken(tmp_path, with_value("model.norm.weight", torch.ones(32)))
    with raises_naming(ConversionError, "float16", "float32", "dtype"):
        convert(source, tmp_path / "out")
    convert(source, tmp_path / "out", dtype="float32")


def test_overflow_in_half_precision(tmp_path):
    tensors = {name: tensor.float() for name, tensor in minimind_tensors().items()}
    tensors["model.norm.weight"] = torch.full((32,), 1e6)
    folder = convert(broken(tmp_path, tensors), tmp_path / "folder")
    with raises_naming(ConversionError, "float16", "model.norm.weight", "bfloat16"):
        convert(folder, tmp_path / "half.pth")


def test_folders_of_other_models(pth, tmp_path):
    LlamaConfig().save_pretrained(tmp_path / "llama")
    with raises_naming(ConversionError, tmp_path / "llama", "llama", "qwen3_moe"):
        convert(tmp_path / "llama", tmp_path / "out")
    sizes = {**SIZES, "head_dim": 8}
    Qwen3ForCausalLM(Qwen3Config(**sizes, attention_bias=True)).save_pretrained(tmp_path / "biased")
    with raises_naming(ConversionError, "qwen3", "attention_bias=True"):
        convert(tmp_path / "biased", tmp_path / "out")
    mixed = Qwen3MoeConfig(**sizes, num_experts=4, num_experts_per_tok=1, moe_intermediate_size=8, mlp_only_layers=[0])
    Qwen3MoeForCausalLM(mixed).save_pretrained(tmp_path / "mixed")
    with raises_naming(ConversionError, "qwen3_moe", "mlp_only_layers=[0]"):
        convert(tmp_path / "mixed", tmp_path / "out")


def test_folder_whose_weights_do_not_fit(pth, tmp_path):
    folder = convert(pth(), tmp_path / "folder")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    with raises_naming(ConversionError, folder, "config.json", "model.layers.2.input_layernorm.weight"):
        convert(folder, tmp_path / "out.pth")
    (folder / "config.json").write_text("{ no json")
    with raises_naming(ConversionError, folder, folder / "config.json"):
        convert(folder, tmp_path / "out.pth")
    shutil.rmtree(folder)
    MiniMindConfig(**SIZES).save_pretrained(folder)
    with raises_naming(ConversionError, folder, "model.safetensors"):
        convert(folder, tmp_path / "out.pth")


def test_minimind2_is_recognised_and_sent_to_its_transformers_folder(tmp_path):
    """Its names were first those of llama.c, later those of transformers' Llama; neither has norms of queries."""
    sizes = {"vocab_size": 16, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    llama = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2))
    later = llama.state_dict()
    first = {"tok_embeddings.weight": torch.zeros(16, 8), "layers.0.attention.wq.weight": torch.zeros(8, 8)}
    experts = later | {"model.layers.0.mlp.experts.0.gate_proj.weight": torch.zeros(8, 8)}
    for weights, named in ((later, "MiniMind2-Small"), (first, "MiniMind2-Small"), (experts, "MiniMind2-MoE")):
        torch.save(weights, tmp_path / "full_sft_512.pth")
        with raises_naming(ConversionError, "MiniMind2", named, "transformers folder"):
            convert(tmp_path / "full_sft_512.pth", tmp_path / "out")
    llama.save_pretrained(tmp_path / "MiniMind2")
    with raises_naming(ConversionError, "llama", "as it is"):
        convert(tmp_path / "MiniMind2", tmp_path / "out")


def test_what_a_file_does_not_hold_is_listed(tiny_minimind, tmp_path):
    for moe, config in ((False, {}), (True, {"rope_theta": 1e4, "num_experts_per_tok": 2})):
        model = tiny_minimind(use_moe=moe)
        convert_source = tmp_path / f"{moe}.pth"
        save_tensors(revert_weight_conversion(model, model.state_dict()), model.config, convert_source)
        assumed = read_checkpoint(convert_source, config).assumed
        left = {"max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "eos_token_id": 2}
        whole = {"rope_theta": 1e6, "inference_rope_scaling": False} | left
        assert assumed == (left | {"inference_rope_scaling": False} if moe else whole)
    assert read_checkpoint(tmp_path / "True.pth", {"inference_rope_scaling": True}).assumed == {
        "rope_theta": 1e6,
        "num_experts_per_tok": 1,
        **left,
    }


def test_a_tokenizer_that_does_not_fit(tmp_path):
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    files, tokens = sorted(tmp_path.iterdir()), len(tokenizer)

    def faults(is_exact: bool = True, **config) -> list[str]:
        return tokenizer_faults(MiniMindConfig(eos_token_id=tokenizer.eos_token_id, **config), files, is_exact)

    assert faults(vocab_size=tokens) == [] and faults(vocab_size=tokens + 1, is_exact=False) == []
    assert "index error" in faults(vocab_size=tokens - 1)[0] and "hardly" in faults(vocab_size=tokens + 1)[0]
    other = MiniMindConfig(vocab_size=tokens, eos_token_id=[0, 1])
    assert f"--config eos_token_id={tokenizer.eos_token_id}" in tokenizer_faults(other, files, True)[0]
    assert tokenizer_faults(other, [], True) == []
