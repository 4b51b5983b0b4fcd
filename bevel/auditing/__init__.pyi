# ruff: noqa: I001 (in the order of use: the auditor, threshold strategies, the bootstrap, planning)
from bevel.auditing.canary_score_auditor import CanaryScoreAuditor as CanaryScoreAuditor
from bevel.auditing.thresholds import ThresholdStrategy as ThresholdStrategy
from bevel.auditing.thresholds import Bonferroni as Bonferroni
from bevel.auditing.thresholds import Explicit as Explicit
from bevel.auditing.thresholds import Split as Split
from bevel.auditing.thresholds import MultiSplit as MultiSplit
from bevel.auditing.bootstrap import BootstrapParams as BootstrapParams
from bevel.auditing.clopper_pearson import fewest_canaries as fewest_canaries
