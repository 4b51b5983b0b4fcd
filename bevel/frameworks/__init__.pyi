# ruff: noqa: I001 (in the order of the documentation)
from bevel.frameworks import nnx as nnx
from bevel.frameworks import linen as linen
from bevel.frameworks import equinox as equinox
from bevel.frameworks.adapter import FunctionalModel as FunctionalModel
