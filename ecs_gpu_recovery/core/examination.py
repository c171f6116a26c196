"""The examination of a machine: a check is asked for, begins, is refused, answers, or never does.

An inconclusive answer is asked for once more: a test that did not run proves nothing. The same for a rank's node, which
its job examines, and for a node on its own: `index` says which machine of the draft.
"""

from __future__ import annotations

from . import keys
from .draft import RecordDraft
from .effects import CheckNode, StopTask
from .events import CheckRefused, CheckStarted, NodeChecked
from .exits import is_passing, our_reason
from .model import Verdict
from .policy import LEVELS


def deeper(level: str) -> str:
    """One level deeper: for the node that the others of a gang waited for."""
    return LEVELS[min(LEVELS.index(level) + 1, len(LEVELS) - 1)] if level in LEVELS else level


def deepest(*levels: str) -> str:
    return max((level for level in levels if level in LEVELS), key=LEVELS.index)


def begin(draft: RecordDraft, index: int = 0, level: str = "") -> None:
    """A new examination: what the last one found, and how often it asked in vain, is forgotten."""
    draft.set(index, findings="", checks_spent=0)
    ask(draft, index, level)


def ask(draft: RecordDraft, index: int, level: str = "") -> None:
    """It has until its deadline to answer: how long that is depends on how deep it goes."""
    draft.set(index, check_try=draft.machine(index).check_try + 1, check_id="", verdict=None)
    order = draft.check_order(index, level)
    draft.set(index, deadline=draft.now + draft.policy.check_wait(order.level))
    draft.order(order)


def withdraw(draft: RecordDraft, index: int, why: str) -> None:
    """The answer is not wanted any more: stop the check, whether or not it has begun."""
    key = draft.check_key(index)
    draft.drop(key)
    draft.order(
        StopTask(
            key=keys.check_stop(key),
            node=draft.node_of(index)[0],
            task_id=draft.machine(index).check_id,
            token=keys.token(key, draft.salt),
            reason=our_reason(draft.owner, draft.attempt, why),
            instance=draft.machine(index).instance,
        )
    )


def awaited(draft: RecordDraft, index: int, ev: CheckStarted | NodeChecked) -> bool:
    """Whether this is the check that is waited for. Another that says so is written down."""
    record = draft.machine(index)
    waits = draft.may_be_examined(index) and record.verdict is None and record.deadline is not None
    if not waits or ev.check_try != record.check_try:
        return False
    ours = _is_ours(draft, index, ev)
    if not ours:
        node, status = draft.node_of(index)
        draft.stranger(node, status, ev.check_id)
    return ours


def _is_ours(draft: RecordDraft, index: int, ev: CheckStarted | NodeChecked) -> bool:
    """By the id that is known. The answer to our order names it; until then, whichever is what was ordered."""
    record = draft.machine(index)
    if ev.origin is None and isinstance(ev, CheckStarted):
        return True
    if record.check_id or ev.origin is None:
        return ev.check_id in ("", record.check_id) or not record.check_id
    token = keys.token(draft.check_key(index), draft.salt)
    return ev.origin.has_token(token) and ev.origin.is_on(record.instance)


def begun(draft: RecordDraft, index: int, ev: CheckStarted) -> None:
    """Note the check's id, so that it can be stopped. The first time, its time begins."""
    order = draft.pending(draft.check_key(index))
    if order is not None and isinstance(order.effect, CheckNode):
        draft.drop(order.key)
        draft.wait_longer(index, draft.policy.check_wait(order.effect.level))
    draft.set(index, check_id=ev.check_id)


def refused(draft: RecordDraft, index: int, ev: CheckRefused) -> None:
    """What passes is waited for; anything else is a check without an answer."""
    record, key = draft.machine(index), draft.check_key(index)
    if ev.check_try != record.check_try or draft.pending(key) is None:
        return
    if is_passing(ev.reason) and record.deadline is not None and draft.now < record.deadline:
        draft.postpone(key, ev.reason)
        return
    draft.drop(key)
    no_answer(draft, index, f"the check could not be started: {ev.reason}")


def answered(draft: RecordDraft, index: int, ev: NodeChecked) -> None:
    """Keep the verdict of a check that was awaited."""
    draft.drop(draft.check_key(index))
    if ev.verdict is Verdict.INCONCLUSIVE:
        no_answer(draft, index, ev.findings or "the check could not tell")
        return
    draft.set(
        index,
        verdict=ev.verdict,
        findings=draft.cut(ev.findings),
        check_id=ev.check_id or draft.machine(index).check_id,
        deadline=None,
    )


def ran_out(draft: RecordDraft, index: int = 0) -> None:
    withdraw(draft, index, "the check did not answer in time")
    no_answer(draft, index, "the check did not answer in time")


def no_answer(draft: RecordDraft, index: int, why: str) -> None:
    spent = draft.machine(index).checks_spent + 1
    draft.set(index, checks_spent=spent, findings=draft.cut(why))
    if spent < draft.policy.check_tries and draft.answers_wanted:
        node, status = draft.node_of(index)
        draft.note(node, status, status, "no verdict; the check is tried again", why)
        ask(draft, index)
    else:
        draft.set(index, verdict=Verdict.INCONCLUSIVE, deadline=None)
