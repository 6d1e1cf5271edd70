# SPDX-License-Identifier: Apache-2.0
"""The memory of a run, from the shapes of its model: `memory.py` adds it up, `devices.py` which devices it fits."""

from .devices import DEVICES, KNOWN_MODELS, Course, fitting_devices, fitting_table
from .memory import ALGORITHMS, DTYPES, MODES, Estimate, Setting, Shape, adapter_parameters, estimate, shape_of

__all__ = [
    "ALGORITHMS",
    "DEVICES",
    "DTYPES",
    "KNOWN_MODELS",
    "MODES",
    "Course",
    "Estimate",
    "Setting",
    "Shape",
    "adapter_parameters",
    "estimate",
    "fitting_devices",
    "fitting_table",
    "shape_of",
]
