"""ParcaePS: a reliable machine that holds the state of all layers, fed with gradients, at most one step behind.

One replica of each stage sends its gradient after the step's vote.  When those of all stages have arrived, the backup says so,
and applies them by the same optimizers: its state is the same to the last bit.  No machine votes for the next step before it
knows that the one before has arrived: so after any loss the backup holds a state that all others hold too, or is one of those
that are lost.

A gradient has one number for each parameter, a state with Adam three: that is what sending gradients saves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from windfall.runtimes.shape_links import LinkBroken, Links
from windfall.runtimes.shape_stage import Update, apply_gradient, sum_dtype, trained_parameters
from windfall.runtimes.shape_states import HeldStates, Layer, unpacked
from windfall.shape_layout import ShapeLayout

HEADER, GRADIENT, ARRIVED = 5, 6, 7
"""Tags of messages."""


def senders_of(layout: ShapeLayout) -> list[str]:
    """Return the machine of each stage that feeds the backup."""
    first = {place.stage: place.machine for place in sorted(layout.places, key=lambda one: -one.pipeline)}
    return [first[stage] for stage in range(layout.stages)]


class BackupLink:
    """A sender's side.  A broken connection to the backup stops nothing: it is dropped.

    Args:
        links: of the senders and the backup.
        backup: its name.
        given_up: whether the layout has been given up; asked when the connection breaks: then the backup is not lost.

    Attributes:
        sent_bytes: of gradients, in all.
    """

    def __init__(self, links: Links, backup: str, given_up: Callable[[], bool]) -> None:
        self._links: Links | None = links
        self._backup, self._given_up, self._step = backup, given_up, 0
        self.sent_bytes = 0

    def send(self, step: int, gradient: Any) -> None:
        """Begin to send a step's gradient, which may be changed afterwards, or packed state, which may not."""

        def send(links: Links) -> None:
            links.sent()
            links.send(torch.tensor([step]), self._backup, HEADER)
            if gradient.dtype == torch.uint8:
                links.send_bytes(gradient, self._backup, GRADIENT)
            else:
                links.send(gradient.detach().clone(), self._backup, GRADIENT)
            self._step = step
            self.sent_bytes += gradient.numel() * gradient.element_size()

        self._try(send)

    def arrived(self) -> None:
        """Wait until the gradients of all stages of the last step have arrived."""
        if self._step:
            self._try(lambda links: links.receive(torch.zeros(1, dtype=torch.int64), self._backup, ARRIVED))
            self._step = 0

    def leave(self) -> None:
        """Say that no more gradients follow in this layout."""

        def leave(links: Links) -> None:
            links.send(torch.tensor([0]), self._backup, HEADER)
            links.sent()

        self.arrived()
        self._try(leave)

    def abort(self) -> None:
        """End all waits for the backup; any thread may call it."""
        links = self._links
        if links is not None:
            links.abort()

    def close(self) -> None:
        """Forget the connection."""
        if self._links is not None:
            self._links.close()
            self._links = None

    def _try(self, action: Callable[[Links], Any]) -> None:
        if self._links is None:
            return
        try:
            action(self._links)
        except LinkBroken:
            self.close()
            if self._given_up():
                raise


def serve(
    links: Links, layout: ShapeLayout, held: HeldStates, *, step: int, applied: Callable[[int], None], schedule: Any
) -> None:
    """Apply the gradients that are sent, until the senders leave the layout.

    Args:
        links: of the senders and the backup.
        layout: that is trained.
        held: the state of all layers after `step`.
        step: the last one.
        applied: called after each step.
        schedule: of learning rates, as in `Update`.

    Raises:
        LinkBroken: a sender is lost.
    """
    senders, everything = senders_of(layout), range(len(held.layers))
    stages = [
        {number: held.layers[number] for number in range(first, end)}
        for first, end in zip(layout.cut, layout.cut[1:], strict=False)
    ]
    gradients = [_place_for(layers, sum_dtype(held.layers)) for layers in stages]
    while True:
        steps = [int(links.receive(torch.zeros(1, dtype=torch.int64), sender, HEADER)) for sender in senders]
        if 0 in steps:
            assert not any(steps), steps
            return
        step += 1
        assert steps == [step] * len(steps), (steps, step)
        for sender, gradient in zip(senders, gradients, strict=True):
            links.receive(gradient, sender, GRADIENT)
        for sender in senders:
            links.send(torch.tensor([step]), sender, ARRIVED)
        held.begin_update(everything)
        for layers, gradient in zip(stages, gradients, strict=True):
            apply_gradient(layers, gradient, Update(step, 1.0, schedule))
        held.end_update(everything)
        applied(step)
        links.sent()


def serve_states(
    links: Links, layout: ShapeLayout, held: HeldStates, *, step: int, applied: Callable[[int], None]
) -> None:
    """Take in states, where gradients would not do: a script has schedules of its own.

    Args and errors are those of `serve`; a state is a gradient of another form.
    """
    (sender,) = senders_of(layout)
    while int(links.receive(torch.zeros(1, dtype=torch.int64), sender, HEADER)):
        state = unpacked(links.receive_bytes(sender, GRADIENT))
        links.send(torch.tensor([state.step]), sender, ARRIVED)
        held.replace(0, state)
        assert state.step == step + 1, (state.step, step)
        step = state.step
        applied(step)
        links.sent()


def _place_for(layers: dict[int, Layer], dtype: Any) -> Any:
    listed = [one for layer in layers.values() for one in trained_parameters(layer)]
    device = listed[0].device if listed else "cpu"
    return torch.zeros(sum(one.numel() for one in listed), dtype=dtype, device=device)
