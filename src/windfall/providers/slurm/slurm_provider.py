"""The `slurm` provider: `ports.Provider` on a cluster that the user already has, by the site's own commands.

One order is one job: an array of single machines, or for a gang one job of several nodes, which are one allocation.  Its
name is the order's token; `--dependency=singleton` keeps a second job of that name from starting while the first lives.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from windfall.errors import ProviderAbsent, ProviderError, ProviderUnreachable, WindfallError
from windfall.market import (
    Answer,
    Bill,
    BlockSettings,
    BootSpec,
    Capabilities,
    Charge,
    Machine,
    Offer,
    Order,
    OrderPreview,
    Quota,
    Refusal,
)
from windfall.ports import Clock
from windfall.providers.provider_settings import ProviderSettings
from windfall.providers.slurm import (
    slurm_limits,
    slurm_listing,
    slurm_previews,
    slurm_site,
    slurm_states,
    slurm_submission,
    slurm_tables,
)
from windfall.providers.slurm.machine_names import index_of, job_of
from windfall.providers.slurm.slurm_commands import Commands, SiteCommands, answer_of, error_of
from windfall.providers.slurm.slurm_limits import Associations
from windfall.providers.slurm.slurm_previews import AskedOf
from windfall.providers.slurm.slurm_records import RELEASED, TAKEN, KnownMachine, SlurmRecords
from windfall.providers.slurm.slurm_settings import SlurmSettings, read_settings, time_limit_s
from windfall.providers.slurm.slurm_site import NAME, Site
from windfall.providers.slurm.slurm_submission import Submission
from windfall.providers.slurm.slurm_tables import JobRow
from windfall.structs import replace
from windfall.terms import Instant, Seconds, Usd, WallTime

SITE_S = 300.0
"""How long partitions, nodes and configuration are taken as unchanged [s]."""
LISTED_S = 86400.0
"""How long an ended machine stays listed [s]."""
ACCOUNTS_LATE_S = 60.0
"""How long the accounts are waited for when the queue no longer has a machine [s]: they lag by seconds."""
UNDER_WAY_S = 120.0
"""How long a submission without an answer may be under way [s]; a site that forgets jobs sooner is asked until then."""
TRIALS_MAX = 64
KEPT_S = 7 * 86400.0
"""How long an order's folder is kept once its machines are gone, with what they printed [s]."""
REMOVAL_S = 3600.0
"""How often old folders are looked for [s]."""


class SlurmProvider:
    """Buys machines from Slurm."""

    name = NAME

    def __init__(self, installation: Path, settings: SlurmSettings, clock: Clock, commands: Commands) -> None:
        """Create the provider; nothing is run or read yet.

        Args:
            installation: the installation's folder, for what the provider remembers.
            settings: how the site is used.
            clock: time; a site's clock is taken to agree with it within seconds.
            commands: runs Slurm's.
        """
        self._settings, self._clock, self._commands = settings, clock, commands
        self._records = SlurmRecords(installation)
        self._ordering, self._polling = threading.Lock(), threading.Lock()
        self._queue: tuple[Instant, tuple[JobRow, ...]] | None = None
        self._site: tuple[Instant, Site] | None = None
        self._known: tuple[Instant, Associations] | None = None
        self._removed_at: Instant | None = None
        self._accepted: set[tuple[str, ...]] = set()

    def capabilities(self) -> Capabilities:
        """See the port."""
        return Capabilities(
            bids=False,
            refunds=False,
            preempts=True,
            idempotent_orders=False,
            notice_format="aws",
            bill_lag_s=Seconds(0.0),
            listing_lag_s=Seconds(self._settings.poll_s + 1.0),
            keeps_ended_s=Seconds(LISTED_S),
            promises_dated=False,
            promises_fail=True,
            false_deaths=True,
            gangs=True,
            queues=True,
            # Where there is no Slurm nothing is ever asked, and the others' calls need not wait for it.
            nearby=not self._commands.present,
            previews=True,
        )

    # --------------------------------------------------------------------------------------------------------- the site

    def site(self) -> Site:
        """Return the site's rules, partitions and nodes; refreshed after a while."""
        with self._polling:
            now = self._clock.now()
            if self._site is None or now - self._site[0] > self._fresh_s(self._site[1]):
                rules = slurm_site.read_rules(answer_of(self._commands, slurm_site.CONFIG))
                partitions = slurm_site.read_partitions(answer_of(self._commands, slurm_site.PARTITIONS), rules)
                kinds = slurm_site.read_kinds(answer_of(self._commands, slurm_site.NODES))
                self._site = now, Site(rules, partitions, kinds)
            return self._site[1]

    def _fresh_s(self, site: Site) -> float:
        """Return for how long a site is taken as unchanged [s]: shortly where nodes are down, which may be back."""
        return SITE_S if all(kind.usable for kind in site.kinds) else self._settings.poll_s

    def offers(self, block: BlockSettings = ()) -> tuple[Offer, ...]:
        """See the port: a part of a node costs what it counts in the site's account."""
        settings, now = self._settings, self._clock.wall_time()
        price, wait_s = settings.usd_per_unit_hour, settings.queue_wait_s
        return slurm_site.offers_of(self.site(), settings.partitions, price, wait_s, now, block=dict(block))

    def quota(self, owner: str, block: BlockSettings = ()) -> tuple[Quota, ...]:
        """Return the limits of the user's association and QOS, where the site enforces and tells them."""
        site = self.site()
        if not site.rules.enforces_limits:
            return ()
        now = self._clock.now()
        if self._known is None or now - self._known[0] > SITE_S:
            self._known = now, slurm_previews.associations(self._commands, site)
        alive = [one.machine for one in self._records.alive() if one.machine.owner == owner]
        used = Counter((machine.zone, machine.machine_type) for machine in alive)
        rows = slurm_limits.quotas_of(
            site, self._known[1], self._settings, dict(block), lambda kind: used[kind.partition, kind.machine_type]
        )
        return tuple(rows)

    def preview(self, order: Order, block: BlockSettings) -> OrderPreview:
        """See the port: one `sbatch --test-only`."""
        now = self._clock.wall_time()
        return slurm_previews.preview(self._commands, self.site(), self._settings, order, block=block, now=now)

    # ----------------------------------------------------------------------------------------------------------- orders

    def order(self, order: Order, boot: BootSpec) -> Answer:
        """See the port."""
        with self._ordering:
            known = self._records.of_token(order.token)
            if self._records.is_cancelled(order.token):
                message = f"the order {order.token} was cancelled"
                return Answer(order.token, slurm_listing.names(known), Refusal.CANCELLED, message)
            if known:
                return Answer(order.token, slurm_listing.names(known))
            found = self._look_up(order)
            if found:
                return Answer(order.token, self._adopt(found))
            sent_at = self._records.sent_at(order.token)
            age_s = 0.0 if sent_at is None else self._clock.wall_time() - sent_at
            if age_s > self._remembered_s():
                if age_s < UNDER_WAY_S:
                    raise ProviderUnreachable(f"the order {order.token} may still be under way to Slurm")
                message = (
                    f"the order {order.token} is too old for Slurm to know what became of it: it is not sent again"
                )
                slurm_submission.wipe(self._commands, self._settings.folder / order.token)
                return Answer(order.token, (), Refusal.CANCELLED, message)
            return self._submit(order, boot)

    def _remembered_s(self) -> float:
        """Return how long the queue surely shows what an order has bought, also if it has ended at once [s]."""
        return self.site().rules.keeps_ended_s * 0.8

    def _look_up(self, order: Order) -> tuple[JobRow, ...]:
        """Return the jobs of a token, now; of several the oldest, the others are cancelled."""
        rows = slurm_tables.read_queue(answer_of(self._commands, (*slurm_tables.QUEUE, f"--name={order.token}")))
        rows = tuple(row for row in rows if row.tag is not None and row.tag.owner == order.owner)
        oldest, younger = slurm_listing.oldest_of(self._without_reused(rows))
        self._cancel_jobs({row.number for row in younger})
        return oldest

    def _without_reused(self, rows: Sequence[JobRow]) -> Sequence[JobRow]:
        """Return the jobs whose number is theirs alone, and cancel the others, whose machines would have others' names."""
        known = {one.machine.machine_id: one for one in self._records.of_names(slurm_listing.names_of_rows(rows))}
        reused = slurm_listing.of_other_orders(rows, known)
        self._cancel_jobs({row.number for row in reused if slurm_listing.lives(row)})
        return [row for row in rows if row not in reused]

    def _adopt(self, rows: Iterable[JobRow]) -> tuple[str, ...]:
        now = self._clock.wall_time()
        known = [one for row in rows for one in slurm_listing.seen_in(row, {}, now)]
        self._records.put(known)
        self._queue = None
        return slurm_listing.names(known)

    def _submit(self, order: Order, boot: BootSpec) -> Answer:
        kind = self.site().kind(order.offer.zone, order.offer.machine_type)
        if kind is None or not 1 <= order.count_min <= order.count_max:
            message = f"this cluster has no {order.offer.machine_type} in a partition {order.offer.zone}"
            return Answer(order.token, (), Refusal.INVALID, message)
        partition, limit_s = self.site().partitions[order.offer.zone], time_limit_s(dict(boot.block))
        if (long := slurm_previews.too_long(dict(boot.block), partition)) is not None:
            return Answer(order.token, (), Refusal.INVALID, long)
        job = slurm_submission.submission(order, kind, boot, self._settings)
        if (refused := self._try_out(job, boot.block)) is not None:
            return replace(refused, token=order.token)
        limited = limit_s is not None or math.isfinite(partition.limit_s)
        facts = {"grace_s": self.site().grace_s(order.offer.zone), "host": os.uname().nodename, "limited": limited}
        slurm_submission.write_boot(self._commands, job, boot, self._settings, facts)
        self._records.send(order.token, self._clock.wall_time())
        done = self._commands.run(job.argv, job.script.encode())
        if done.code != 0:
            refusal = slurm_states.refusal_of_text(done.errors)
            if refusal is None:
                # It may be in the queue all the same, and then start from what is in its folder.
                raise error_of("sbatch", self._commands.where, done)
            slurm_submission.wipe(self._commands, job.folder)
            self._records.forget(order.token)
            if slurm_states.is_of_nodes(done.errors):
                # Its trial was not refused so, or before Slurm knew its nodes: the next order is tried out again.
                self._accepted.discard(job.trial)
                message = "Slurm was started a moment ago, and does not know its nodes yet"
                return Answer(order.token, (), Refusal.NO_CAPACITY, message)
            return Answer(order.token, (), refusal, self._explain(done.errors, order.offer.zone, boot.block))
        # A call that the line doubled has made two: the older counts, and its name keeps the younger from starting.
        rows = self._look_up(order)
        if not rows:
            raise ProviderUnreachable(
                f"sbatch answered {done.output.strip()!r}, and squeue shows no job {order.token} of a number of its own"
            )
        return Answer(order.token, self._adopt(rows))

    def _explain(self, text: str, partition: str, block: BlockSettings) -> str:
        site = self.site()
        known = slurm_previews.associations(self._commands, site)
        return slurm_previews.refused(text, AskedOf(dict(block), self._settings, site, partition, known))

    def _try_out(self, job: Submission, block: BlockSettings) -> Answer | None:
        """Return why a job could never run; nothing is submitted, and the same request is not tried twice."""
        if job.trial in self._accepted:
            return None
        partition = job.order.offer.zone
        done, refusal = slurm_previews.try_out(self._commands, job, partition)
        if refusal is None:
            if len(self._accepted) >= TRIALS_MAX:
                self._accepted.clear()
            self._accepted.add(job.trial)
        # What has no room now is still accepted into the queue.
        if refusal in {None, Refusal.NO_CAPACITY}:
            return None
        return Answer("", (), refusal, self._explain(done.errors, partition, block))

    def cancel(self, token: str) -> None:
        """See the port."""
        self._records.cancel(token, self._clock.wall_time())
        self._run_quietly(("scancel", "--state=PENDING", f"--name={token}", "--me"))
        self._queue = None

    # ---------------------------------------------------------------------------------------------------------- listing

    def list(self, owner: str) -> tuple[Machine, ...]:
        """See the port."""
        self._refresh()
        since = WallTime(self._clock.wall_time() - LISTED_S)
        return tuple(known.machine for known in self._records.all_of(owner, since))

    def _refresh(self) -> None:
        """Bring the records up to the queue, which is asked at most once in the poll interval."""
        with self._polling:
            now = self._clock.now()
            if self._queue is not None and now - self._queue[0] < self._settings.poll_s:
                return
            alive = self._records.alive()
            try:
                rows = slurm_tables.read_queue(answer_of(self._commands, slurm_tables.QUEUE))
            except ProviderAbsent as error:
                if alive:
                    raise ProviderUnreachable(str(error)) from error
                return
            self._queue = now, rows
        try:
            self._reconcile(rows, alive)
        except WindfallError:
            self._queue = None  # the records are older than what was read
            raise

    def _reconcile(self, rows: Sequence[JobRow], alive: Sequence[KnownMachine]) -> None:
        wall_time = self._clock.wall_time()
        kept, doubles = slurm_listing.first_of_each_token(self._without_reused(rows))
        self._cancel_jobs({row.number for row in doubles})
        known = {one.machine.machine_id: one for one in self._records.of_names(slurm_listing.names_of_rows(kept))}
        now_seen, unwanted = slurm_listing.seen_in_all(kept, known, wall_time)
        # Of an array only the tasks that are unwanted: the others may run.
        self._cancel_jobs({job_of(name) for name in slurm_listing.names_of_rows(unwanted)})
        changes = [one for one in now_seen if slurm_listing.is_news(one, known.get(one.machine.machine_id))]
        seen = {one.machine.machine_id for one in now_seen}
        changes += self._ends_of([one for one in alive if one.machine.machine_id not in seen])
        self._end_remains(changes)
        self._records.put(changes)
        self._records.saw(seen, wall_time)
        self._tidy(changes)
        self._remove_old()

    def _ends_of(self, missing: Sequence[KnownMachine]) -> Sequence[KnownMachine]:
        """Return how machines ended that the queue has forgotten: by the accounts, or after the last time they were seen."""
        if not missing:
            return []
        if not self.site().rules.accounts:
            return [slurm_listing.ended_unseen(one, ()) for one in missing]
        numbers = ",".join(sorted({str(one.number) for one in missing}))
        accounts = slurm_tables.read_accounts(answer_of(self._commands, (*slurm_tables.ACCOUNTS, f"--jobs={numbers}")))
        # What the accounts do not tell yet is asked for again at the next listing.
        late = self._clock.wall_time() - ACCOUNTS_LATE_S
        known = (one for one in missing if slurm_listing.is_accounted(one, accounts) or one.seen < late)
        return [slurm_listing.ended_unseen(one, accounts) for one in known]

    def _end_remains(self, changes: Iterable[KnownMachine]) -> None:
        """End what may still live of machines that are gone for Slurm alone: a lost node's processes read their release."""
        ended: dict[str, set[int]] = defaultdict(set)
        for one in changes:
            if one.machine.ended is not None and not one.asked:
                ended[one.machine.token].add(index_of(one.machine.machine_id))
        for token, indexes in ended.items():
            folder = self._settings.folder / token
            slurm_submission.write_request(self._commands, folder, sorted(indexes), release=True)

    def _tidy(self, changes: Iterable[KnownMachine]) -> None:
        """Remove what machines that never started would have started from."""
        tokens = {one.machine.token for one in changes if one.machine.ended is not None}
        for token in tokens:
            if all(one.machine.ended is not None for one in self._records.of_token(token)):
                slurm_submission.wipe(self._commands, self._settings.folder / token)

    def _remove_old(self) -> None:
        """Remove what machines printed that are long gone."""
        now, wall_time = self._clock.now(), self._clock.wall_time()
        if self._removed_at is not None and now - self._removed_at < REMOVAL_S:
            return
        self._removed_at = now
        tokens = self._records.littered(WallTime(wall_time - KEPT_S))
        with contextlib.suppress(ProviderError):
            if tokens and slurm_submission.remove_folders(self._commands, self._settings.folder, tokens):
                self._records.removed(tokens, wall_time)

    # ------------------------------------------------------------------------------------------------------------- ends

    def release(self, machine_id: str) -> None:
        """See the port."""
        self._end(machine_id, RELEASED)

    def preempt(self, machine_id: str, notice_s: Seconds | None) -> None:
        """See the port: the machine is notified through its folder, and ends itself at its deadline."""
        if notice_s is None:
            self._end(machine_id, TAKEN)
            return
        known = self._records.find(machine_id)
        if known is None or known.machine.ended is not None:
            return
        at = WallTime(self._clock.wall_time() + notice_s)
        self._records.ask(machine_id, f"{TAKEN} {at}")
        self._request(known, **slurm_submission.preempt_request(at))
        self._queue = None

    def _end(self, machine_id: str, what: str) -> None:
        known = self._records.find(machine_id)
        if known is None:
            # It may be of before this folder's records: Slurm is asked all the same.
            self._run_quietly(("scancel", job_of(machine_id)))
            return
        for one in self._sisters(known):
            self._records.ask(one.machine.machine_id, what)
        self._request(known, release=True)
        if known.machine.ended is None:
            self._run_quietly(("scancel", job_of(machine_id)))
            self._queue = None

    def _sisters(self, known: KnownMachine) -> tuple[KnownMachine, ...]:
        """Return the machines that end with one: its allocation."""
        if not known.machine.allocation:
            return (known,)
        return self._records.of_token(known.machine.token)

    def _request(self, known: KnownMachine, **request: object) -> None:
        indexes = [index_of(one.machine.machine_id) for one in self._sisters(known)]
        slurm_submission.write_request(self._commands, self._settings.folder / known.machine.token, indexes, **request)

    def _cancel_jobs(self, jobs: Iterable[int | str]) -> None:
        found = sorted(map(str, jobs))
        if found:
            self._run_quietly(("scancel", *found))

    def _run_quietly(self, argv: Sequence[str]) -> None:
        """Run a command for which what is gone already is no error."""
        result = self._commands.run(argv)
        if result.code != 0 and "Invalid job id" not in result.errors and "already completing" not in result.errors:
            raise error_of(argv[0], self._commands.where, result)

    # ------------------------------------------------------------------------------------------------------------- bill

    def charges(self, owner: str, cursor: str) -> Bill:
        """See the port: one line a machine, from the same times as the site's own account."""
        if not self._records.exist:
            return Bill((), cursor)
        self._refresh()
        newest, lines = int(cursor or 0), []
        for known in self._records.changed_after(owner, newest):
            newest = max(newest, known.changed)
            one = known.machine
            if one.started is not None and one.ended is not None:
                usd = Usd((one.ended - one.started) / 3600.0 * one.price_usd_per_hour)
                line = f"{one.machine_id}/use"
                lines.append(Charge(line, one.machine_id, usd, one.started, one.ended, settled=True, job_id=one.job_id))
        return Bill(tuple(lines), str(newest))


def open_provider(installation: Path, clock: Clock, *, start: bool, settings: ProviderSettings) -> SlurmProvider:
    """Open Slurm for an installation; see `SlurmProvider`.  It has no process of its own to start."""
    del start
    read = read_settings(installation, settings)
    return SlurmProvider(installation, read, clock, SiteCommands(read.login, os.environ))
