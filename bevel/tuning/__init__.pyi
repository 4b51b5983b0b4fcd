# ruff: noqa: I001 (in the order of use: what is searched, what it costs, the search)
from bevel.tuning.spaces import OneOf as OneOf
from bevel.tuning.spaces import LogUniform as LogUniform
from bevel.tuning.spaces import Uniform as Uniform
from bevel.tuning.trial_count import TrialCount as TrialCount
from bevel.tuning.price import Price as Price
from bevel.tuning.price import calibrated as calibrated
from bevel.tuning.price import epsilon_of_search as epsilon_of_search
from bevel.tuning.price import selection_event as selection_event
from bevel.tuning.result import TuningResult as TuningResult
from bevel.tuning.search import tune as tune
from bevel.tuning.grid import GridTrial as GridTrial
from bevel.tuning.grid import charged_grid as charged_grid
