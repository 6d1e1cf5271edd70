# SPDX-License-Identifier: Apache-2.0
"""What the calculator adds up, and what it says of runs whose memory was measured."""

import json

import pytest
from launching import launch
from naming import assert_names, raises_naming
from peft import IA3Config, LoraConfig

from minimind_hf import GRPOConfig, MiniMindConfig, PPOConfig
from minimind_hf.cli import main
from minimind_hf.estimate import Setting, adapter_parameters, estimate, shape_of

CONFIG = MiniMindConfig(
    vocab_size=6400, hidden_size=512, num_hidden_layers=8, num_attention_heads=8, num_key_value_heads=2
)
MEASURED = [  # MiB of a run on a CPU above its imports: prompts of about 12 tokens, completions of 96, groups of 8
    ({"algorithm": "grpo", "rows": 8}, 994),
    ({"algorithm": "grpo", "rows": 16}, 1132),
    ({"algorithm": "ppo", "rows": 2, "rollout_rows": 8}, 1291),
    ({"algorithm": "ppo", "rows": 4, "rollout_rows": 8}, 1474),
    ({"algorithm": "ppo", "rows": 8}, 1794),
    ({"algorithm": "ppo", "rows": 16}, 2839),
    ({"algorithm": "grpo", "rows": 32, "lora": 8}, 820),
]


RUNS = {
    "grpo": {"per_device_train_batch_size": 16, "num_generations": 8},
    "grpo with LoRA": {"per_device_train_batch_size": 16, "num_generations": 8, "lora_r": 8},
    "ppo of small mini-batches": {"per_device_train_batch_size": 8, "mini_batch_size": 4},
}


def estimated(tmp_path, capsys, **flags) -> float:
    """MiB that the command says."""
    CONFIG.save_pretrained(tmp_path)
    command = ["estimate", str(tmp_path), "--use_cpu"]
    for name, value in flags.items():
        command += [f"--{name}", str(value)]
    assert main(command) == 0
    return float(capsys.readouterr().out.splitlines()[-1].split()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_within_15_percent_of_a_run(name, tmp_path, capsys):
    run = {"algorithm": name.split()[0], **RUNS[name]}
    done = launch("estimate_worker.py", tmp_path / "run", json.dumps(run))
    measured = json.loads(done.stdout.splitlines()[-1])
    found = estimated(tmp_path, capsys, **run, max_prompt_length=12, max_completion_length=96, processes=1)
    assert found == pytest.approx(measured, rel=0.15)


def test_flags_mean_what_they_mean_in_the_configs(tmp_path, capsys):
    def ppo(**flags):
        return estimated(tmp_path, capsys, algorithm="ppo", **flags)

    defaults = {"per_device_train_batch_size": 8, "mini_batch_size": 2, "steps_per_generation": 1}
    assert ppo() == ppo(**defaults)
    # The update holds a mini-batch; the rollout, which is not as large, what steps_per_generation makes of the batch.
    assert ppo(per_device_train_batch_size=16) == ppo()
    assert ppo(mini_batch_size=4) > ppo()
    assert ppo(steps_per_generation=1000, max_batch_rows=8000) > ppo()
    assert ppo(steps_per_generation=1000, max_batch_rows=8) == ppo()
    assert estimated(tmp_path, capsys) == estimated(
        tmp_path, capsys, per_device_train_batch_size=12, num_generations=6
    )


@pytest.mark.parametrize(("algorithm", "config"), [("grpo", GRPOConfig), ("ppo", PPOConfig)])
def test_defaults_are_those_of_the_configs(algorithm, config, tmp_path, capsys):
    names = ["per_device_train_batch_size", "num_generations", "max_batch_rows", "max_completion_length"]
    defaults = {name: getattr(config, name) for name in [*names, "mini_batch_size"] if hasattr(config, name)}
    named = [
        f"{name} {defaults[name]}" for name in defaults if name not in ("max_batch_rows", "max_completion_length")
    ]
    found = estimated(tmp_path, capsys, algorithm=algorithm)
    assert found == estimated(tmp_path, capsys, algorithm=algorithm, **defaults)
    main(["estimate", str(tmp_path), "--algorithm", algorithm])
    printed = capsys.readouterr().out
    assert all(text in printed for text in named)


FILES = {  # a yaml file, and the flags that say the same
    "grpo": (
        "num_generations: 4\nper_device_train_batch_size: 8\ngradient_accumulation_steps: 16\nmax_prompt_length: 99",
        {
            "num_generations": 4,
            "per_device_train_batch_size": 8,
            "steps_per_generation": 16,
            "max_prompt_length": 99,
        },
    ),
    "grpo with adapters": (
        "use_peft: true\nlora_r: 32\nbeta: 0\nmax_tokens_per_microbatch: 700\nreward_funcs: [length]",
        {"lora_r": 32, "no_reference": True, "max_tokens_per_microbatch": 700},
    ),
    "no adapters": ("lora_r: 32\nmax_completion_length: 700", {"max_completion_length": 700}),
    "ppo by its settings": (
        "mini_batch_size: 4\nkl_coef: 0.0\nbf16: true",
        {"algorithm": "ppo", "mini_batch_size": 4, "no_reference": True, "bf16": True},
    ),
    "as recipes/agent.py takes it": ("algorithm: ppo\ntask: guess", {"algorithm": "ppo"}),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_settings_says_what_flags_say(name, tmp_path, capsys):
    text, flags = FILES[name]
    CONFIG.save_pretrained(tmp_path / "model")
    (tmp_path / "run.yaml").write_text(f"model_name_or_path: {tmp_path / 'model'}\n{text}\n")
    given = [part for flag, value in flags.items() for part in (f"--{flag}", *([] if value is True else [str(value)]))]
    assert main(["estimate", str(tmp_path / "model"), *given]) == 0
    by_flags = capsys.readouterr().out
    assert main(["estimate", "--config", str(tmp_path / "run.yaml")]) == 0
    assert capsys.readouterr().out == by_flags


def test_flags_win_over_the_file(tmp_path, capsys):
    CONFIG.save_pretrained(tmp_path)
    (tmp_path / "run.yaml").write_text("max_completion_length: 700\nmodel_name_or_path: elsewhere\n")
    command = ["estimate", str(tmp_path), "--config", str(tmp_path / "run.yaml"), "--max_completion_length", "50"]
    assert main(command) == 0
    assert "completions of 50 tokens" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "flags", "named"),
    [
        ("max_completion_lenght: 5", [], ["max_completion_lenght", "--max_completion_length"]),
        ("batch_size: 5", [], ["batch_size", "MiniMind", "per_device_train_batch_size"]),
        ("mini_batch_size: 5", ["--algorithm", "grpo"], ["mini_batch_size"]),
        ("num_generations: null", [], ["num_generations", "null"]),
        ("algorithm: dpo", [], ["algorithm", "'dpo'", "grpo", "ppo"]),
        ("- 5", [], ["list"]),
    ],
)
def test_a_file_is_refused_as_the_recipes_do(text, flags, named, tmp_path, capsys):
    CONFIG.save_pretrained(tmp_path)
    (tmp_path / "run.yaml").write_text(text)
    assert main(["estimate", str(tmp_path), "--config", str(tmp_path / "run.yaml"), *flags]) == 1
    assert_names(capsys.readouterr().err, *named)


@pytest.mark.parametrize("name", ["grpo_minimind.yaml", "recipes/ppo_minimind.yaml", "agent_minimind.yaml"])
def test_the_files_beside_the_recipes_are_taken(name, tmp_path, capsys):
    CONFIG.save_pretrained(tmp_path)
    assert main(["estimate", str(tmp_path), "--config", name]) == 0
    assert f"assumed: {'ppo' if 'ppo' in name else 'grpo'}, ddp" in capsys.readouterr().out


@pytest.mark.parametrize(("setting", "measured"), MEASURED)
def test_within_15_percent_of_what_was_measured(setting, measured):
    shape = shape_of(CONFIG)
    rank = setting.pop("lora", None) if "lora" in setting else None
    trained = None if rank is None else adapter_parameters(shape, rank)
    found = estimate(shape, Setting(group=8, prompt=12, completion=96, on_cpu=True, trained=trained, **setting))
    assert found.total / 2**20 == pytest.approx(measured, rel=0.15)


def test_what_a_mode_shards_is_divided():
    shape = shape_of(CONFIG)
    weights = shape.parameters * 4

    def parts(mode):
        found = estimate(shape, Setting(algorithm="ppo", mode=mode, processes=4))
        return found.policy, found.reference, found.critic, found.gradients, found.optimizer

    whole = (weights, weights, weights, 2 * weights, 4 * weights)
    assert parts("ddp") == whole
    assert parts("zero1") == (*whole[:4], whole[4] // 4)
    assert parts("zero2") == (*whole[:3], whole[3] // 4, whole[4] // 4)
    assert parts("zero3") == parts("fsdp2") == tuple(part // 4 for part in whole)


def test_adapters_need_neither_reference_nor_critic_of_their_own():
    shape = shape_of(CONFIG)
    found = estimate(shape, Setting(algorithm="ppo", trained=adapter_parameters(shape, 8)))
    assert found.reference == found.critic == 0
    assert found.optimizer < shape.parameters


@pytest.mark.parametrize(
    ("change", "named"), [({"mode": "zero4"}, ["mode", "'zero4'", "zero3"]), ({"rows": 0}, ["rows", 0, 1])]
)
def test_refused(change, named):
    with raises_naming(ValueError, *named):
        Setting(**change)


def test_command(tmp_path, capsys):
    CONFIG.save_pretrained(tmp_path)
    assert main(["estimate", str(tmp_path), "--lora_r", "8", "--mode", "zero2", "--processes", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert_names(lines[0], "zero2", "2 processes", "float32")
    assert lines[-1].split()[0] == "total"


def test_a_folder_of_adapters_stands_for_them_on_their_base(tmp_path, capsys):
    base, adapters = tmp_path / "base", tmp_path / "adapters"
    CONFIG.save_pretrained(base)
    LoraConfig(r=4, base_model_name_or_path=str(base)).save_pretrained(adapters)
    assert main(["estimate", str(base), "--lora_r", "4"]) == 0
    wanted = capsys.readouterr().out
    assert main(["estimate", str(adapters)]) == 0
    first, _, rest = capsys.readouterr().out.partition("\n")
    assert_names(first, adapters, base, "LoRA", 4)
    assert rest == wanted
    IA3Config(base_model_name_or_path=str(base)).save_pretrained(adapters)
    assert main(["estimate", str(adapters)]) == 1
    assert_names(capsys.readouterr().err, adapters, "IA3")
