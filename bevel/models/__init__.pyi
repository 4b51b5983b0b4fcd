from bevel.models.built import Model as Model
from bevel.models.built import build as build
from bevel.models.options import ModelTable as ModelTable
