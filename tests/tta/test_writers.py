from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tta.ledger_builder import LedgerBuilder
from tfasr.ledger import timeline as writers
from tfasr.ledger.timeline import Timeline


def second_writer(events):
    return writers.second_writer(Timeline(events))


def resumed(with_mono=True):
    ledger = LedgerBuilder(with_mono=with_mono).begin().epoch(1, 0.5).checkpoint()
    ledger.step().resume(down_s=5, from_step=2).epoch(2, 0.4)
    return ledger.resume(down_s=5, from_step=None).epoch(1, 0.5).end()


def test_one_process_after_the_other_is_one_at_a_time():
    assert second_writer(resumed().events) is None
    assert second_writer(resumed(with_mono=False).events) is None
    assert second_writer([]) is None


def test_what_shows_it_is_said():
    twice = [*LedgerBuilder().begin().events, *LedgerBuilder().begin().events]
    assert "begins session 0, which had begun before" in second_writer(twice)
    events = resumed().events
    assert "is of session 0 and follows one of session 2" in second_writer([*events, events[1]])


@settings(deadline=None, max_examples=60)
@given(st.lists(st.booleans(), min_size=12, max_size=40))
def test_any_interleaving_of_two_runs_is_noticed(takes):
    one, other = resumed().events, LedgerBuilder().begin().epoch(1, 0.3, steps=9).end().events
    left = [list(one), list(other)]
    mixed = [left[take].pop(0) for take in takes if left[take]]
    mixed += left[0] + left[1]
    assert second_writer(mixed) is not None


def test_what_shows_it_is_said_with_its_place():
    begun = LedgerBuilder().begin().events
    assert second_writer([*begun, *begun]).startswith(f"event {len(begun) + 1} begins session 0")
    steps = LedgerBuilder().begin().step().step().events
    found = second_writer([*steps[:-2], steps[-1], steps[-2]])
    assert found == f"event {len(steps)} is step 1 and follows step 2"
