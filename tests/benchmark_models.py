"""The models of `benchmarks/`, whose folder is kept off the path: it has modules of our names."""

import importlib.util
import sys
from pathlib import Path

_file = Path(__file__).resolve().parents[1] / "benchmarks" / "models.py"
_spec = importlib.util.spec_from_file_location("benchmark_models_file", _file)
models = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = models
_spec.loader.exec_module(models)
