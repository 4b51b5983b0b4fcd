from bevel.models.built import build as build
from bevel.models.evaluation import Evaluation as Evaluation
from bevel.models.model import BuiltModel as BuiltModel
from bevel.models.model import Model as Model
from bevel.models.options import ModelTable as ModelTable
