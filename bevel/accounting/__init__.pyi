# ruff: noqa: I001 (in the order of use: events, epsilon, calibration, ledger)
from bevel.accounting.events import dpsgd_event as dpsgd_event
from bevel.accounting.events import truncated_dpsgd_event as truncated_dpsgd_event
from bevel.accounting.events import fixed_dpsgd_event as fixed_dpsgd_event
from bevel.accounting.events import amplified_bandmf_event as amplified_bandmf_event
from bevel.accounting.events import (
    truncated_amplified_bandmf_event as truncated_amplified_bandmf_event,
)
from bevel.accounting.events import balls_in_bins_event as balls_in_bins_event
from bevel.accounting.events import random_allocation_event as random_allocation_event
from bevel.accounting.events import gaussian_event as gaussian_event
from bevel.accounting.events import zcdp_event as zcdp_event
from bevel.accounting.events import private_selection_event as private_selection_event
from bevel.accounting.mixture_events import BallsInBinsDpEvent as BallsInBinsDpEvent
from bevel.accounting.mixture_events import RandomAllocationDpEvent as RandomAllocationDpEvent
from bevel.accounting.sampler_event import event_of as event_of
from bevel.accounting.sampler_event import unamplified_event_of as unamplified_event_of
from bevel.accounting.accountants import AccountantFn as AccountantFn
from bevel.accounting.monte_carlo import MonteCarlo as MonteCarlo
from bevel.accounting.spending import epsilon as epsilon
from bevel.accounting.spending import delta as delta
from bevel.accounting.spending import epsilon_after_each_step as epsilon_after_each_step
from bevel.accounting.trade_off import trade_off_curve as trade_off_curve
from bevel.accounting.arguments import check_budget as check_budget
from bevel.accounting.calibration import calibrate_noise_multiplier as calibrate_noise_multiplier
from bevel.accounting.calibration import calibrate_batch_size as calibrate_batch_size
from bevel.accounting.calibration import calibrate_iterations as calibrate_iterations
from bevel.accounting.ledger import Ledger as Ledger
from bevel.accounting.ledger import Budget as Budget
from bevel.accounting.ledger import key_commitment as key_commitment
from bevel.accounting.ledger import new_salt as new_salt
from bevel.accounting.ledger import event_to_json as event_to_json
from bevel.accounting.ledger import event_from_json as event_from_json
