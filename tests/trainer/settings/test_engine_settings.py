# SPDX-License-Identifier: Apache-2.0
"""Every setting of an engine that is not in use is refused by name: nothing that a user wrote is ignored."""

import pytest
from naming import raises_naming
from tiny import ScriptedEngine

from minimind_hf import GRPOConfig, PPOConfig
from minimind_hf.trainer.settings.engines import ENGINE_SETTINGS

# A value other than the default for each setting of each engine
OTHERS = {
    "torch": {
        "max_batch_rows": 8,
        "rollout_dtype": "bfloat16",
        "torch_engine_path": "general",
        "speculation": "self",
    },
    "sglang": {
        "sglang_base_url": ["http://a:1"],
        "server_timeout": 20.0,
        "rollout_weight_sync": "distributed",
        "rollout_sync_dir": "/dev/shm/run",
        "sglang_enable_sleep_mode": True,
    },
}
CHOSEN = {"torch": {}, "sglang": {"rollout_engine": "sglang", "sglang_base_url": ["http://a:1"]}}
IGNORED = [
    (chosen, engine, name)
    for chosen in CHOSEN
    for engine, settings in OTHERS.items()
    for name in settings
    if engine != chosen
]


def test_all_settings_are_tried():
    assert {engine: set(names) for engine, names in ENGINE_SETTINGS.items()} == {
        engine: set(settings) for engine, settings in OTHERS.items()
    }


@pytest.mark.parametrize("config_class", [GRPOConfig, PPOConfig])
@pytest.mark.parametrize(("chosen", "engine", "name"), IGNORED)
def test_a_setting_of_another_engine_is_refused(tmp_path, config_class, chosen, engine, name):
    value = OTHERS[engine][name]
    with raises_naming(ValueError, name, repr(value), "rollout_engine", repr(chosen), f"rollout_engine={engine!r}"):
        config_class(str(tmp_path), use_cpu=True, **CHOSEN[chosen], **{name: value})


@pytest.mark.parametrize("engine", OTHERS)
def test_its_own_settings_and_the_defaults_of_others_are_taken(tmp_path, engine):
    defaults = GRPOConfig(str(tmp_path), use_cpu=True)
    for name, value in OTHERS[engine].items():
        if name != "rollout_weight_sync":  # which leaves no use for rollout_sync_dir
            config = GRPOConfig(str(tmp_path), use_cpu=True, **CHOSEN[engine] | {name: value})
            assert getattr(config, name) == value
    (other,) = set(OTHERS) - {engine}
    unset = {name: getattr(defaults, name) for name in ENGINE_SETTINGS[other] if name != "sglang_base_url"}
    GRPOConfig(str(tmp_path), use_cpu=True, **CHOSEN[engine], **unset)


def test_a_folder_is_no_use_to_a_broadcast(tmp_path):
    settings = {"rollout_weight_sync": "distributed", "rollout_sync_dir": "/dev/shm/run"}
    with raises_naming(ValueError, *settings, "'distributed'", "'/dev/shm/run'"):
        GRPOConfig(str(tmp_path), use_cpu=True, **CHOSEN["sglang"], **settings)


@pytest.mark.parametrize("name", ENGINE_SETTINGS["torch"])
def test_settings_of_the_torch_engine_next_to_an_engine_object(make_trainer, name):
    value = OTHERS["torch"][name]
    with raises_naming(ValueError, name, repr(value), "ScriptedEngine"):
        make_trainer(engine=ScriptedEngine(0.8), **{name: value})


def test_an_engine_object_next_to_servers(make_trainer):
    with raises_naming(ValueError, "rollout_engine", "'sglang'", "ScriptedEngine"):
        make_trainer(engine=ScriptedEngine(0.8), **CHOSEN["sglang"])
