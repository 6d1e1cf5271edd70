# SPDX-License-Identifier: Apache-2.0
"""Makes transformers' Auto classes know MiniMind, without importing transformers or MiniMind's own code.

Each Auto class looks classes up in a mapping, which keeps those that were registered in a dictionary. As soon as
transformers' module has made its mappings, their dictionaries are replaced by ones that import MiniMind's classes when
somebody asks for them. So nothing is imported while transformers itself is being imported, which would run in a
circle: `transformers.modeling_layers` needs `AutoModel`, and MiniMind's models need `transformers.modeling_layers`.

To everybody else it looks as if `AutoConfig.register` and `AutoModel.register` had been called: what is registered
later for the same name or class wins.
"""

import sys
from collections.abc import Callable, ItemsView, Iterator, KeysView, ValuesView
from importlib import import_module
from types import ModuleType
from typing import Any

from ..import_hooks import after_import

MODEL_TYPE = "minimind"
CONFIG = ("minimind_hf.models.configuration_minimind", "MiniMindConfig")
_MODELS = "minimind_hf.models.modeling_minimind"
MODELS = {
    "AutoModel": (_MODELS, "MiniMindModel"),
    "AutoModelForCausalLM": (_MODELS, "MiniMindForCausalLM"),
    "AutoModelForSequenceClassification": (_MODELS, "MiniMindForSequenceClassification"),
    "AutoModelForTokenClassification": (_MODELS, "MiniMindForTokenClassification"),
}


def register() -> None:
    """Makes the Auto classes know MiniMind, now or when they are imported. Calling it again changes nothing."""
    after_import("transformers.models.auto.configuration_auto", _register_config)
    after_import("transformers.models.auto.modeling_auto", _register_models)


def _register_config(module: ModuleType) -> None:
    def load() -> tuple[Any, Any]:
        return MODEL_TYPE, _load_class(*CONFIG)

    _add_lazily(module.CONFIG_MAPPING, lambda key: key == MODEL_TYPE, load)


def _register_models(module: ModuleType) -> None:
    for auto_class, location in MODELS.items():

        def load(location=location) -> tuple[Any, Any]:
            return _load_class(*CONFIG), _load_class(*location)

        _add_lazily(getattr(module, auto_class)._model_mapping, _is_our_config, load)


def _is_our_config(key: Any) -> bool:
    """Whoever asks for the models of our config has imported it."""
    module, name = CONFIG
    return key is not None and key is getattr(sys.modules.get(module), name, None)


def _load_class(module: str, name: str) -> type | None:
    """`None` while this very thread imports the module: transformers looks into its mappings then, too."""
    return getattr(import_module(module), name, None)


def _add_lazily(mapping: Any, is_ours: Callable[[Any], bool], load: Callable[[], tuple[Any, Any]]) -> None:
    registered = dict.copy(mapping._extra_content)  # of a `_Registered` this loads nothing
    mapping._extra_content = _Registered({k: v for k, v in registered.items() if not is_ours(k)}, is_ours, load)


class _Registered(dict):
    """What is registered in a mapping of transformers, with one entry that is loaded when somebody asks for it.

    No lock is needed: an import has its own, and adding the entry twice does no harm. A lock held during an import
    could block another thread for ever.

    Args:
        registered (`dict`): What is registered already.
        is_ours (`Callable[[Any], bool]`): Whether a key is that of the entry.
        load (`Callable`): Returns key and value of the entry, `None` in place of one that cannot be had yet.
    """

    def __init__(self, registered: dict, is_ours: Callable[[Any], bool], load: Callable[[], tuple[Any, Any]]):
        super().__init__(registered)
        self._is_ours = is_ours
        self._load = load
        self._is_loaded = False

    def _complete(self) -> None:
        if self._is_loaded:
            return
        key, value = self._load()
        if key is not None and value is not None:
            self.setdefault(key, value)  # unless somebody registered another class for it in the meantime
            self._is_loaded = True

    def __contains__(self, key: Any) -> bool:
        if self._is_ours(key):
            self._complete()
        return super().__contains__(key)

    def __getitem__(self, key: Any) -> Any:
        if self._is_ours(key):
            self._complete()
        return super().__getitem__(key)

    def get(self, key: Any, default: Any = None) -> Any:
        if self._is_ours(key):
            self._complete()
        return super().get(key, default)

    def __iter__(self) -> Iterator[Any]:
        self._complete()
        return super().__iter__()

    def __len__(self) -> int:
        self._complete()
        return super().__len__()

    def keys(self) -> KeysView[Any]:
        self._complete()
        return super().keys()

    def values(self) -> ValuesView[Any]:
        self._complete()
        return super().values()

    def items(self) -> ItemsView[Any, Any]:
        self._complete()
        return super().items()
