"""What every notice source promises, tried on each format against a real service, and on signals."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

import pytest

from tests.notices.support import CLOCK, FORMATS, NOTICE_S, POLL_S, Rig, Watch, eventually, make_source, rig
from tests.support.world import LATE_S
from windfall.notices.signals import SignalNotices
from windfall.terms import Instant, NoticeLevel, Seconds
from windfall.wire.metadata_server import ScriptedEvent, serve

HINT, ANNOUNCED, WITHDRAWN = NoticeLevel.HINT, NoticeLevel.ANNOUNCED, NoticeLevel.WITHDRAWN
SLOPPY_S = 0.2
BREAKDOWNS = ("500", "404", "garbage", "short", "hang-up")


@pytest.fixture(params=FORMATS)
def any_rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    """A rig of each format in turn."""
    with rig(request.param) as made:
        yield made


def test_silence_is_no_notice(any_rig: Rig) -> None:
    """While the cloud says nothing, nothing is delivered."""
    with Watch(any_rig.source) as watch:
        any_rig.more_polls()
        assert watch.notices == []


def test_an_announcement_is_delivered_once_with_its_deadline(any_rig: Rig) -> None:
    """An announcement that stands for many polls is one notice, its deadline right to 0.2 s on the monotonic clock."""
    with Watch(any_rig.source) as watch:
        any_rig.more_polls()
        deadline = any_rig.announce()
        watch.wait_for(1)
        any_rig.more_polls()
        assert watch.levels == [ANNOUNCED]
        assert watch.notices[0].deadline == pytest.approx(deadline, abs=SLOPPY_S)
        assert watch.notices[0].source == any_rig.provider == any_rig.source.name


def test_a_notice_that_stands_before_the_watch_begins_is_delivered(any_rig: Rig) -> None:
    """A source that starts late still tells what the cloud says."""
    any_rig.announce()
    with Watch(any_rig.source) as watch:
        assert watch.wait_for(1)[0].level is ANNOUNCED


def test_what_is_withdrawn_may_be_announced_again(any_rig: Rig) -> None:
    """Announced, withdrawn and announced again are three notices; the withdrawal names what it withdraws."""
    with Watch(any_rig.source) as watch:
        any_rig.more_polls()
        any_rig.announce()
        watch.wait_for(1)
        any_rig.server.withdraw()
        watch.wait_for(2)
        any_rig.announce()
        watch.wait_for(3)
        any_rig.more_polls()
        first, second, _ = watch.notices
        assert watch.levels == [ANNOUNCED, WITHDRAWN, ANNOUNCED]
        assert (second.notice_id, second.deadline) == (first.notice_id, None)


def test_a_hint_is_no_announcement(any_rig: Rig) -> None:
    """A recommendation, a live migration, a freeze: each is one hint, without a deadline."""
    with Watch(any_rig.source) as watch:
        any_rig.server.hint()
        watch.wait_for(1)
        any_rig.more_polls()
        assert [(notice.level, notice.deadline) for notice in watch.notices] == [(HINT, None)]


@pytest.mark.parametrize(("provider", "notice_s"), [("google", 60.0), ("azure", 600.0)])
def test_maintenance_announces_the_end(provider: str, notice_s: float) -> None:
    """Maintenance that ends the machine is announced, with the format's own warning."""
    with rig(provider) as made, Watch(made.source) as watch:
        made.more_polls()
        made.server.maintenance()
        notice = watch.wait_for(1)[0]
        assert notice.level is ANNOUNCED
        assert notice.deadline is not None
        assert notice_s - 1.2 <= notice.deadline - CLOCK.now() <= notice_s


def test_notice_to_delivery_takes_one_poll(any_rig: Rig) -> None:
    """From the cloud's word to the delivery passes at most one poll and 50 ms (median of five)."""
    delays = []
    with Watch(any_rig.source) as watch:
        any_rig.more_polls()
        for round_ in range(5):
            started = CLOCK.now()
            any_rig.announce()
            watch.wait_for(2 * round_ + 1)
            delays.append(watch.at[-1] - started)
            any_rig.server.withdraw()
            watch.wait_for(2 * round_ + 2)
    assert statistics.median(delays) <= POLL_S + 0.05


@pytest.mark.parametrize("breakdown", BREAKDOWNS)
def test_a_service_that_breaks_down_neither_kills_nor_speaks(any_rig: Rig, breakdown: str) -> None:
    """Errors, garbage, broken connections deliver nothing and withdraw nothing; the next notice still arrives."""
    with Watch(any_rig.source) as watch:
        any_rig.front.fail_for(breakdown, requests=2)
        any_rig.front.mode = "pass"
        any_rig.more_polls()
        assert watch.notices == []
        any_rig.announce()
        watch.wait_for(1)
        # A 404 is Amazon's way of saying that there is no notice.
        expected = [ANNOUNCED, WITHDRAWN] if (any_rig.provider, breakdown) == ("aws", "404") else [ANNOUNCED]
        any_rig.front.fail_for(breakdown, requests=2)
        eventually(lambda: watch.levels == expected, f"{expected} during the breakdown")
        any_rig.server.withdraw()
        any_rig.front.mode = "pass"
        eventually(lambda: watch.levels == [ANNOUNCED, WITHDRAWN], "the withdrawal after the breakdown")


@pytest.mark.parametrize("breakdown", ["stall", "drip", "flood"])
def test_a_service_that_never_ends_its_answer_is_given_up(breakdown: str) -> None:
    """No answer, a byte at a time, an endless one: each is given up in bounded time, and the notice then arrives."""
    with rig("aws") as made, Watch(made.source) as watch:
        made.more_polls()
        made.front.fail_for(breakdown, requests=1)
        made.announce()
        made.front.mode = "pass"
        assert watch.wait_for(1)[0].level is ANNOUNCED


def test_a_restarted_service_is_found_again(any_rig: Rig) -> None:
    """A service that was away and comes back on the same port, knowing no earlier session, is heard again."""
    port = any_rig.server.port
    with Watch(any_rig.source) as watch:
        any_rig.more_polls()
        any_rig.server.close()
        any_rig.more_polls(3)
        with serve([], any_rig.provider, port, now=CLOCK.wall_time) as again:
            any_rig.more_polls(4)
            assert watch.notices == []
            again.announce(NOTICE_S)
            watch.wait_for(1)
            assert watch.levels == [ANNOUNCED]


def test_a_machine_that_is_gone_says_nothing(any_rig: Rig) -> None:
    """When the service falls silent for good, nothing is made up."""
    with Watch(any_rig.source) as watch:
        any_rig.announce()
        watch.wait_for(1)
        any_rig.server.gone()
        any_rig.more_polls(3)
        assert watch.levels == [ANNOUNCED]


@pytest.mark.parametrize("mode", ["pass", "stall", "drip", "500"])
def test_a_source_stops_at_once(any_rig: Rig, mode: str) -> None:
    """Whatever the service does, the source returns within 0.2 s of being told to stop."""
    watch = Watch(any_rig.source).start()
    any_rig.front.fail_for(mode, requests=1)
    assert watch.stop() < 0.2


def test_a_proxy_is_not_asked(any_rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The metadata service is on this machine's link: `http_proxy` does not apply to it."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    any_rig.announce()
    with Watch(any_rig.source) as watch:
        assert watch.wait_for(1)[0].level is ANNOUNCED


@pytest.mark.parametrize("provider", FORMATS)
def test_a_script_plays_by_itself(provider: str) -> None:
    """A timeline written beforehand reaches the source in its order and at its times."""
    script = [
        ScriptedEvent(0.3, "hint"),
        ScriptedEvent(0.6, "announce", notice_s=NOTICE_S),
        ScriptedEvent(0.9, "withdraw"),
    ]
    started = time.monotonic()
    with serve(script, provider, now=CLOCK.wall_time) as server, Watch(make_source(provider, server.url)) as watch:
        watch.wait_for(4)
    assert watch.levels == [HINT, ANNOUNCED, WITHDRAWN, WITHDRAWN]
    after_s = [at - started for at in watch.at[:3]]
    assert all(0.0 <= found - due < LATE_S for found, due in zip(after_s, [0.3, 0.6, 0.9], strict=True))


def test_a_signal_announces_the_end_after_its_grace() -> None:
    """The first signal is one announcement with deadline signal + grace; later signals say nothing new."""
    source = SignalNotices(grace_s=Seconds(NOTICE_S))
    with Watch(source) as watch:
        started = CLOCK.now()
        source.deliver_signal(Instant(started))
        watch.wait_for(1)
        assert watch.at[0] - started < 0.15
        source.deliver_signal(CLOCK.now())
        eventually(source._signals.empty, "the second signal is read")
        assert [(notice.level, notice.deadline) for notice in watch.notices] == [(ANNOUNCED, started + NOTICE_S)]


def test_without_a_signal_there_is_no_notice_and_the_source_stops() -> None:
    """A source that hears no signal delivers nothing and stops within 0.2 s."""
    watch = Watch(SignalNotices(grace_s=Seconds(NOTICE_S))).start()
    assert watch.stop() < 0.2
    assert watch.notices == []


@pytest.mark.parametrize("provider", ["aws", "google"])
def test_only_azure_listens_to_an_acknowledgement(provider: str) -> None:
    """Acknowledging elsewhere sends nothing."""
    with rig(provider) as made:
        made.announce()
        with Watch(made.source) as watch:
            notice = watch.wait_for(1)[0]
        before = made.front.requests
        made.source.acknowledge(notice)
        assert made.front.requests == before
