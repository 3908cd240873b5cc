"""What is particular to each cloud: Amazon's tokens, Google's missing time, Azure's shared events and approval."""

from __future__ import annotations

import pytest

from tests.notices.support import CLOCK, POLL_S, Front, Watch, eventually, make_source, rig
from windfall.notices.aws import AwsNotices
from windfall.notices.azure import AzureNotices
from windfall.notices.google import GoogleNotices
from windfall.terms import Instant, Notice, NoticeLevel, Seconds
from windfall.wire.metadata_server import ScriptedEvent, serve

ANNOUNCED, HINT, WITHDRAWN = NoticeLevel.ANNOUNCED, NoticeLevel.HINT, NoticeLevel.WITHDRAWN


def test_an_expired_session_token_is_renewed() -> None:
    """A token that runs out between two polls is replaced: the notice after it still arrives, nothing is withdrawn."""
    now = [1_700_000_000.0]
    with serve([], "aws", now=lambda: now[0]) as server, Front(server.url) as front:
        source = AwsNotices(CLOCK, front.url, poll_s=POLL_S, token_ttl_s=10)
        with Watch(source) as watch:
            eventually(lambda: front.requests > 6, "a few polls")
            server.hint()
            watch.wait_for(1)
            now[0] += 11
            seen = front.requests
            eventually(lambda: front.requests > seen + 6, "polls with a new token")
            assert watch.levels == [HINT]
            server.announce(120)
            watch.wait_for(2)


@pytest.mark.parametrize("kind", ["terminate", "stop", "hibernate"])
def test_every_action_of_amazon_is_an_announcement(kind: str) -> None:
    """Stop and hibernate take the machine away as terminate does."""
    with rig("aws") as made, Watch(made.source) as watch:
        made.server.announce(120, kind)
        assert watch.wait_for(1)[0].level is ANNOUNCED


def test_a_preemption_while_google_was_away_counts_from_the_last_answer() -> None:
    """TRUE found after a gap: the clock of the notice began no later than the last FALSE, so no second is invented."""
    with rig("google") as made, Watch(made.source) as watch:
        eventually(lambda: made.front.requests >= 4, "the long polls have begun")
        # The two requests that are being held answer FALSE within a second; the next ones fail.
        made.front.fail_for("500", requests=2)
        failing_since = CLOCK.now()
        made.front.fail_for("500", requests=6)
        made.announce()
        made.front.mode = "pass"
        notice = watch.wait_for(1)[0]
        assert notice.deadline is not None
        assert notice.deadline <= failing_since + 30.0 + 0.1 < CLOCK.now() + 30.0


def test_a_server_that_does_not_hold_requests_is_polled() -> None:
    """Behind a proxy that answers long polls at once, Google is asked once a poll, not in a spin, and still heard."""
    with serve([], "google", now=CLOCK.wall_time) as server, Front(server.url) as front:
        front.mode = "impatient"
        source = GoogleNotices(CLOCK, front.url, poll_s=Seconds(0.2), wait_s=1)
        with Watch(source) as watch:
            began, seen = CLOCK.now(), front.requests
            eventually(lambda: front.requests >= seen + 10, "ten polls of two paths")
            assert CLOCK.now() - began > 0.5
            server.announce()
            watch.wait_for(1)


def test_events_of_other_machines_are_not_ours() -> None:
    """Azure lists the whole set's events: those of other machines are neither delivered nor withdrawn."""
    with rig("azure") as made, Watch(made.source) as watch:
        made.server.other_machine(30)
        made.more_polls()
        assert watch.notices == []
        made.announce()
        watch.wait_for(1)
        made.server.withdraw()
        watch.wait_for(2)
        made.more_polls()
        assert watch.levels == [ANNOUNCED, WITHDRAWN]


def test_two_events_in_one_document_are_two_notices() -> None:
    """A redeploy and a preemption at once: both are told, each with its own deadline."""
    script = [
        ScriptedEvent(0.0, "maintenance", "Redeploy", 600),
        ScriptedEvent(0.0, "announce", "Preempt", 30),
        ScriptedEvent(0.0, "other_machine"),
    ]
    with serve(script, "azure", now=CLOCK.wall_time) as server, Watch(make_source("azure", server.url)) as watch:
        first, second = watch.wait_for(2)
        assert first.notice_id != second.notice_id
        assert first.deadline is not None
        assert second.deadline is not None
        assert first.deadline - second.deadline == pytest.approx(570, abs=0.2)


def test_the_approval_is_sent_only_when_called_for() -> None:
    """Watching never approves; `acknowledge` does, once, for that event, and Azure then starts it."""
    with rig("azure") as made, Watch(made.source) as watch:
        made.announce(600)
        notice = watch.wait_for(1)[0]
        made.more_polls()
        assert made.server.acknowledged == ()
        made.source.acknowledge(notice)
        assert made.server.acknowledged == (notice.notice_id,)
        started = watch.wait_for(2)[1]
        assert (started.level, started.notice_id) == (ANNOUNCED, notice.notice_id)
        assert started.deadline is not None
        assert started.deadline <= CLOCK.now()


@pytest.mark.parametrize(
    "notice",
    [
        Notice(HINT, "azure", "00000001-AFDC-4513-B24B-AA5F13A16123"),
        Notice(WITHDRAWN, "azure", "00000001-AFDC-4513-B24B-AA5F13A16123"),
        Notice(ANNOUNCED, "signal", "00000001-AFDC-4513-B24B-AA5F13A16123", Instant(1.0)),
        Notice(ANNOUNCED, "azure", "00000009-AFDC-4513-B24B-AA5F13A16123", Instant(1.0)),
    ],
)
def test_only_an_announcement_that_stands_is_approved(notice: Notice) -> None:
    """A hint, a withdrawn event, another source's notice, an unknown event: nothing is approved."""
    with rig("azure") as made:
        made.announce()
        made.source.acknowledge(notice)
        assert made.server.acknowledged == ()


def test_an_event_that_lists_other_machines_is_not_approved() -> None:
    """An approval counts for all machines of an event, and the others' saves are not known here."""
    with rig("azure") as made:
        made.announce()
        made.front.mode = "crowd"
        made.source.acknowledge(Notice(ANNOUNCED, "azure", "00000001-AFDC-4513-B24B-AA5F13A16123", Instant(1.0)))
        assert made.server.acknowledged == ()


def test_an_approval_that_cannot_be_sent_gives_up() -> None:
    """A dead service costs a bounded number of tries and no exception: the machine goes at its deadline anyway."""
    with rig("azure") as made:
        made.announce()
        made.front.mode = "500"
        made.source.acknowledge(Notice(ANNOUNCED, "azure", "00000001-AFDC-4513-B24B-AA5F13A16123", Instant(1.0)))
        assert made.front.requests == 3


@pytest.mark.parametrize("mode", ["nameless", "misnamed"])
def test_while_its_name_is_unknown_a_machine_takes_every_event_for_a_hint(mode: str) -> None:
    """An event that may be ours is worth a save, not a farewell; once the name is known it is what it says."""
    with rig("azure") as made:
        made.front.mode = mode
        made.announce()
        with Watch(made.source) as watch:
            assert watch.wait_for(1)[0].level is HINT
            made.front.mode = "pass"
            assert watch.wait_for(2)[1].level is ANNOUNCED


def test_a_name_given_by_the_user_needs_no_question() -> None:
    """With the resource name as an argument the service is asked for events alone."""
    with serve([], "azure", now=CLOCK.wall_time, machine="gpu-7") as server:
        server.announce(30)
        with Watch(AzureNotices(CLOCK, server.url, machine="GPU-7", poll_s=POLL_S)) as watch:
            assert watch.wait_for(1)[0].level is ANNOUNCED
