# ruff: noqa: I001 (in the order of use)
from bevel.keras_api.config import DPKerasConfig as DPKerasConfig
from bevel.keras_api.private_model import make_private as make_private
from bevel.keras_api.private_model import get_noise_multiplier as get_noise_multiplier
