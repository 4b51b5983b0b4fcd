from bevel.choosing.noise_curve import NoiseCurve as NoiseCurve
from bevel.choosing.noise_curve import NoisePoint as NoisePoint
from bevel.choosing.proposal import ChosenNumber as ChosenNumber
from bevel.choosing.proposal import Proposal as Proposal
from bevel.choosing.proposal import Request as Request
from bevel.choosing.proposal import propose as propose
