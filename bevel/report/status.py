"""Describes how far a run got and how it ended."""

from bevel.report.run_files import RunFiles

CALLBACK = (
    "A callback ended the run. If it looked at results of the run, the number of steps depends on "
    "the data, and the guarantee is the budget that was fixed beforehand."
)
ENDINGS = {
    "complete": "All steps of the plan were taken.",
    "ended by the budget": "The run ended because the next step would have exceeded the budget.",
    "ended by the callback": CALLBACK,
    "no trial was drawn": "The random number of trials of this private search was 0, so there is "
    "no model.",
}
# Only the owner's page shows these, because they reveal when the run was active.
UNDER_WAY = {
    "running": "The run has not ended: it is still running, or it was killed and continues from "
    "its last checkpoint when you start it again.",
    "interrupted": "The run was interrupted and continues from its last checkpoint when you start "
    "it again.",
}


def status(run: RunFiles) -> tuple[str, str]:
    """The status in a few words, and a sentence that explains it.

    Without the private files, it depends only on released files: on how the run ended, if it did,
    and on the last checkpoint.
    """
    found = (run.private_record or {}).get("status") or run.record.get("ending")
    if not found:
        steps = f"{run.last_step} of {run.record.get('steps') or '?'}" if run.last_step else "no"
        return f"{steps} steps released so far", "The run has not ended: more steps may follow."
    known = ENDINGS | UNDER_WAY
    return str(found), known.get(str(found), "This version of bevel does not know this status.")


def ended_by_callback(run: RunFiles) -> bool:
    return "ended by the callback" in (
        run.record.get("ending"),
        (run.private_record or {}).get("status"),
    )
