"""Scripts as other people write them: what they keep in objects, callbacks, memories and data sets is seen and named."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from tests.drill.conftest import Drill, script


class Style(NamedTuple):
    """A script that resumes, the change that makes it forget something, and what the drill is to say then."""

    changes: tuple[tuple[str, str], ...]
    words: str
    silent: str
    """A word that would be a wrong name for it."""


STYLES = {
    "callbacks": Style(
        (('        vars(self.plateau).update(d["plateau"])\n', ""),), "`self.plateau.lowest` not restored", "c.lines"
    ),
    "adversarial": Style(
        (('    d_opt.load_state_dict(s["d_opt"])\n', ""),), "`d_opt` has no exp_avg", "position in the data"
    ),
    "recurrent": Style((('        hidden = d["hidden"]\n', ""),), "`hidden[0]` not restored", "position in the data"),
    "replay": Style((('    agent.memory = k["memory"]\n', ""),), "`self.memory` not restored", "position in the data"),
    "curriculum": Style(
        (
            ("    train.length = min(12, 2 + 2 * epoch)\n", ""),
            (
                "        checkpoint.step()\n",
                "        checkpoint.step()\n    train.length = min(12, train.length + 2)\n",
            ),
        ),
        "`train.length` not restored: step 12 starts with 2, expected 6",
        "workers",
    ),
    "clipping": Style(
        (('        clip.norms = ck["norms"]\n', ""),),
        "`clip.norms` not restored: step 12 starts with 0 entries, expected 11",
        "accumulation",
    ),
    "heavy_ball": Style((('        velocity = z["velocity"]\n', ""),), "`velocity` not restored", "NoneType"),
    "partial_fit": Style((('    model.t_ = saved["t"]\n', ""),), "`model.t_` not restored", "random generator"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", STYLES)
def test_the_cause_is_named_and_not_what_follows_from_it(name: str, drill_warm: Drill) -> None:
    """Of state that nothing but the script's own variables hold, the variable is named, and no innocent thing."""
    style = STYLES[name]

    told = drill_warm(script(name, *style.changes))

    assert told["code"] == 5
    said = [one["message"] for one in told["forgotten"]]
    assert style.words in said[0]
    assert not any(style.silent in one for one in said)


@pytest.mark.slow
@pytest.mark.parametrize("name", STYLES)
def test_they_resume_as_written(name: str, drill_warm: Drill) -> None:
    """The same scripts, unchanged, are left in peace."""
    told = drill_warm(script(name))

    assert (told["code"], told.get("forgotten")) == (0, []), told
