"""`audit`: trains with canaries, attacks what is released, and compares with the promise."""

import dataclasses
import os
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from bevel.auditing.arguments import Floats, checked_significance
from bevel.auditing.audit_result import AuditResult
from bevel.auditing.audited_trainer import AuditedTrainer, Observed
from bevel.auditing.canaries import Canaries, GradientCanaries, RecordCanaries, gradient_canaries
from bevel.auditing.canary_score_auditor import CanaryScoreAuditor
from bevel.auditing.canary_traces import canary_traces
from bevel.auditing.data_with_canaries import DataWithCanaries
from bevel.auditing.independent_units import units_are_independent
from bevel.auditing.promise import limit_of, promised_delta, promised_epsilon
from bevel.auditing.released_files import Trace
from bevel.auditing.repeated_noise import repeated_noise
from bevel.auditing.scores import last_model_scores, strategy_matrix, white_box_scores
from bevel.auditing.traces import released_traces
from bevel.batch_selection import ExamplesByUser
from bevel.checks import shown, whole_number
from bevel.errors import FixArgumentsError
from bevel.execution_plan import DPExecutionPlan, PlanSecrets
from bevel.training import RunOptions, Trainer
from bevel.training.data import source_of
from bevel.training.folder import RELEASED, RUN
from bevel.training.process_agreement import is_first
from bevel.training.state import TrainingState, split

PyTree = Any
Attack = Literal["every step", "last model"]
_FEW = 64  # canaries of one parameter: with fewer, an error in it alone may go unnoticed


def audit(
    trainer: Trainer,
    dataset: Any,
    params: PyTree,
    *,
    canaries: int | RecordCanaries = 1000,
    attack: Attack = "every step",
    runs: int = 1,
    delta: float | None = None,
    significance: float = 0.05,
    seed: int | None = None,
    model_state: PyTree = None,
    user_ids: np.ndarray | None = None,
    folder: str | os.PathLike[str] | None = None,
    options: RunOptions | None = None,
) -> AuditResult:
    """Trains with canaries and returns a lower bound on epsilon, next to the promised one.

    The bound is `CanaryScoreAuditor.epsilon_one_run_fdp`, with guesses on both sides, at the
    promised delta. This is fixed before any score is seen. It holds for canaries of one run, and
    for those of several runs together, because each canary is in one run only.

    The run uses fresh secrets, so it is not one of your runs. Its state is not returned: it was
    trained on canaries. With real data it spends privacy like any other run. If you pass a folder,
    it is charged in the ledger, its released files are searched for traces of noise, raw values,
    secrets and canaries, and the record of the audit is kept in `private/audit.json`.

    Args:
      trainer: the trainer to audit. Its plan stays the same.
      dataset: the data of the plan. Canaries take the places of random examples (or users).
      params: the initial parameters.
      canaries: the number of gradient canaries, or `record_canaries(...)`, which are scored by the
        loss of the last model.
      attack: 'every step' sees the noised sum of every step, which is what the guarantee covers,
        and knows what ordinary examples contributed, if the sampler draws units independently.
        'last model' sees the last parameters only, and gives lower bounds.
      runs: the number of runs, each with new canaries.
      delta: the delta of the promise; by default that of the budget.
      significance: the probability with which the bound may be wrong.
      seed: of the canaries and coins; None draws from the entropy of the operating system.
      model_state, user_ids, options: as in `Trainer.fit`.
      folder: where the audited run is kept: a new folder. Only for a single run.
    """
    plan, significance = trainer.plan, checked_significance(significance)
    delta = promised_delta(plan, delta)
    whole_number("runs", runs)
    if attack not in ("every step", "last model"):
        raise FixArgumentsError(f"attack={shown(attack)}: write 'every step' or 'last model'.")
    if runs > 1 and (folder is not None or isinstance(canaries, Canaries)):
        raise FixArgumentsError(
            f"runs={runs} with a folder or with records: a folder holds one run, and records have "
            "one coin each. Call audit once for each run."
        )
    if folder is not None and (Path(folder) / RELEASED / RUN).exists():
        raise FixArgumentsError(
            f"{folder} already holds a run, and an audit cannot resume, because it draws new "
            "canaries: pass a new folder."
        )
    count = len(canaries) if isinstance(canaries, Canaries) else whole_number("canaries", canaries)
    strongest = _strongest(runs * count, significance, delta)
    units = len(np.unique(user_ids)) if user_ids is not None else len(source_of(dataset))
    trained = split(params, trainer.trainable)[0]
    scores, held_in, findings = [], [], list[str]()
    for run in range(runs):
        drawn: Any = canaries
        if not isinstance(canaries, Canaries):
            own_seed = None if seed is None else seed + run
            drawn = gradient_canaries(trained, count, units, own_seed)
        audited = audited_trainer(trainer, drawn)
        state = audited.fit(
            data_with_canaries(dataset, drawn, user_ids),
            params,
            model_state=model_state,
            folder=None if folder is None else Path(folder),
            user_ids=user_ids,
            options=options or RunOptions(progress=False),
        )
        scores.append(_scores_of(audited, state, params, attack))
        findings += _findings(audited, state)
        held_in.append(drawn.held_in)
    result = result_of(
        plan,
        np.concatenate(scores),
        np.concatenate(held_in),
        delta=delta,
        significance=significance,
        strongest=strongest,
        attack=attack,
        canaries=drawn,
        files=folder is not None,
    )
    result = dataclasses.replace(result, findings=tuple(findings))
    if folder is None or not is_first():
        return result
    result = dataclasses.replace(result, traces=_traces_in(Path(folder), result, drawn, trained))
    result.save(folder)
    return result


def _traces_in(
    folder: Path, result: AuditResult, canaries: Canaries, trained: PyTree
) -> tuple[Trace, ...]:
    """Traces in the released files of an audited run."""
    if not isinstance(canaries, GradientCanaries):
        return released_traces(folder)
    shapes = [jnp.shape(leaf) for leaf in jax.tree.leaves(trained)]

    plan, delta = result.plan, result.delta
    assert plan is not None

    def exceeds(bound: float) -> bool:
        return bound > limit_of(plan, delta, result.promised_epsilon, bound)

    seen = canary_traces(folder, canaries, shapes, exceeds, delta)
    return (*released_traces(folder), *seen)


def audited_trainer(trainer: Trainer, canaries: Canaries) -> AuditedTrainer:
    """The trainer with canaries, and a plan with fresh secrets unless they are those of a test."""
    fields = {field.name: getattr(trainer, field.name) for field in dataclasses.fields(Trainer)}
    if isinstance(trainer.config, DPExecutionPlan) and not trainer.config.secrets.known:
        fields["config"] = dataclasses.replace(trainer.config, secrets=PlanSecrets.new())
    return AuditedTrainer(**fields, canaries=canaries)


def data_with_canaries(
    dataset: Any, canaries: Canaries, user_ids: np.ndarray | None = None
) -> DataWithCanaries:
    """The data, with canaries in the places of some units."""
    unit_of_record = None
    if user_ids is not None:
        unit_of_record = np.searchsorted(ExamplesByUser.of(user_ids).user_ids, user_ids)
    return DataWithCanaries(source_of(dataset), canaries, unit_of_record)


def _scores_of(
    trainer: AuditedTrainer, state: TrainingState, params: PyTree, attack: Attack
) -> Floats:
    """The scores of the canaries of one run."""
    canaries = trainer.canaries
    if isinstance(canaries, RecordCanaries):
        return _loss_scores(trainer, state, params, canaries)
    assert isinstance(canaries, GradientCanaries)
    seen = state.opt_state
    assert isinstance(seen, Observed)
    if attack == "every step":
        sums = np.asarray(seen.sums, np.float64)
        if units_are_independent(trainer.plan):
            sums = sums - np.asarray(state.noise_state.others)
        return white_box_scores(sums[: int(state.step)], canaries.leaf, trainer.plan)
    first, last = (split(tree, trainer.trainable)[0] for tree in (params, state.params))
    first = jax.tree.map(jnp.asarray, first)
    return last_model_scores(np.asarray(canaries.values(last)) - np.asarray(canaries.values(first)))


def _findings(trainer: AuditedTrainer, state: TrainingState) -> list[str]:
    """Errors that no score of a single canary shows, in words."""
    plan, seen = trainer.plan, state.opt_state
    rescaled = plan.counting is None or plan.clip.rescale_to_unit_norm
    if not (isinstance(seen, Observed) and rescaled and units_are_independent(plan)):
        return []
    taken = int(state.step)
    sums = np.asarray(seen.sums, np.float64)[:taken]
    rest = sums - np.asarray(state.noise_state.others, np.float64)[:taken]
    if not np.isfinite(rest).all():
        return []  # the scores are not finite either, which is an error
    stddev = plan.noise_stddev / float(np.max(np.diag(strategy_matrix(plan, taken))))
    pairs = repeated_noise(rest, plan.clip.l2_norm_bound, stddev, float(np.abs(sums).max()))
    if not pairs:
        return []
    return [f"noise: {pairs} pairs of coordinates have the same noise at every step"]


def _loss_scores(
    trainer: AuditedTrainer, state: TrainingState, params: PyTree, canaries: RecordCanaries
) -> Floats:
    """How far the loss of each record fell during training."""
    loss: Any = trainer.loss_fn
    extra = () if state.model_state is None else (state.model_state,)

    @jax.jit
    def losses(params: PyTree) -> jax.Array:
        def of_record(record: PyTree) -> jax.Array:
            one = jax.tree.map(lambda x: x[None], record)
            return loss(params, *extra, one, jax.random.key(0))[0]

        return jax.lax.map(of_record, jax.tree.map(jnp.asarray, canaries.records))

    before = losses(jax.tree.map(jnp.asarray, params))
    after = losses(trainer.released(state).evaluated)
    return np.asarray(before, np.float64) - np.asarray(after, np.float64)


def result_of(
    plan: DPExecutionPlan,
    scores: Floats,
    held_in: np.ndarray,
    *,
    delta: float,
    significance: float,
    strongest: float,
    attack: str,
    canaries: Canaries,
    files: bool = False,
) -> AuditResult:
    """The bound from the scores, and what it is compared with."""
    if not np.isfinite(scores).all():
        raise FixArgumentsError(
            f"{int((~np.isfinite(scores)).sum())} of {len(scores)} scores are not finite, so what "
            "the run released is not finite: training diverged. Use a smaller learning rate. "
            "Leaving these canaries out would bias the audit."
        )
    if held_in.all() or not held_in.any():
        raise FixArgumentsError(
            f"all {len(held_in)} coins fell on the same side, so there is nothing to tell apart: "
            "use more canaries."
        )
    if np.ptp(scores) == 0:
        raise FixArgumentsError(
            f"all {len(scores)} scores are equal, so the attack saw nothing of the canaries: check "
            "that the parameters are trained, and that the learning rate is not 0."
        )
    ranks = ranks_of(scores)
    auditor = CanaryScoreAuditor(ranks[held_in], ranks[~held_in])
    bound = auditor.epsilon_one_run_fdp(significance, delta, one_sided=False)
    promised = promised_epsilon(plan, delta)
    return AuditResult(
        promised, delta, bound, limit_of(plan, delta, promised, bound), significance, strongest,
        scores, held_in, attack, *_coverage(plan, canaries, attack, files), plan=plan,
    )  # fmt: skip


def ranks_of(scores: Floats) -> Floats:
    """The ranks of the scores. Equal ones are ordered at random, without regard to the coins.

    Without noise, many scores are equal, and a bound cannot guess some of them and not the others.
    """
    order = np.lexsort((np.random.default_rng(0).random(len(scores)), scores))
    ranks = np.empty(len(scores))
    ranks[order] = np.arange(len(scores))
    return ranks


def _strongest(canaries: int, significance: float, delta: float) -> float:
    """The bound if every guess is right. Raises if it is 0, because then nothing can be shown."""
    half = np.zeros(max(1, canaries // 2))
    auditor = CanaryScoreAuditor(half + 1, half)
    bound = auditor.epsilon_one_run_fdp(significance, delta, one_sided=False)
    if bound == 0:
        raise FixArgumentsError(
            f"canaries={canaries}: too few for significance {significance:g}: even if every "
            "guess were right, nothing would be shown. Use more canaries, such as 1000."
        )
    return bound


def _coverage(
    plan: DPExecutionPlan, canaries: Canaries, attack: str, files: bool
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What was attacked and what was not, in words."""
    seen = ("all files under released/",) if files else ()
    unattacked = [] if files else ["files: pass a folder, or see bevel.auditing.released_traces"]
    if plan.counting is not None:
        unattacked.append("the count of unclipped gradients that adapts the clip norm")
    if isinstance(canaries, RecordCanaries):
        return (f"{len(canaries)} records, by their loss", *seen), (
            "everything that the loss of the last model does not show",
            *unattacked,
        )
    assert isinstance(canaries, GradientCanaries)
    counts = {canaries.paths[k]: len(numbers) for k, numbers in canaries.by_leaf().items()}
    shown = [f"{path} ({n} canaries)" for path, n in counts.items() if n >= _FEW]
    few = [path for path in canaries.paths if counts.get(path, 0) < _FEW]
    if few:
        names = ", ".join(few[:4]) + (f" and {len(few) - 4} more" if len(few) > 4 else "")
        unattacked.append(f"errors in these parameters alone, which have few canaries: {names}")
    if attack == "last model":
        unattacked.append("the noised sums of single steps")
    return (*shown[:6], *seen), tuple(unattacked)
