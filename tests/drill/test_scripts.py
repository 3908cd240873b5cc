"""Twenty resume bugs are found and named; twenty scripts that resume are left in peace."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from tests.drill.conftest import Drill, script


class Bug(NamedTuple):
    """A bug that users have: where it is planted, and the codes that name it rightly."""

    family: str
    changes: tuple[tuple[str, str], ...]
    codes: frozenset[str]
    words: str
    ranks: int = 1


def _bug(family: str, *changes: tuple[str, str], codes: str, words: str, ranks: int = 1) -> Bug:
    return Bug(family, changes, frozenset(codes.split()), words, ranks)


BUGS: dict[str, Bug] = {
    "optimizer": _bug(
        "classifier",
        ('        optimizer.load_state_dict(saved["optimizer"])\n', ""),
        ("torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)", "torch.optim.AdamW(model.parameters(), lr=0.1)"),
        codes="optimizer lr",
        words="exp_avg",
    ),
    "scheduler": _bug(
        "classifier",
        ('        scheduler.load_state_dict(saved["scheduler"])\n', ""),
        codes="scheduler",
        words="expected",
    ),
    "position in the epoch": _bug(
        "classifier",
        ('saved["position"], saved["best"]', '0, saved["best"]'),
        codes="data counter variable",
        words="position",
    ),
    "torch's random numbers": _bug(
        "classifier", ('        torch.set_rng_state(saved["torch"])\n', ""), codes="torch-rng", words="torch"
    ),
    "python's random numbers": _bug(
        "classifier", ('        random.setstate(saved["python"])\n', ""), codes="python-rng", words="python"
    ),
    "numpy's random numbers": _bug(
        "classifier", ('        np.random.set_state(saved["numpy"])\n', ""), codes="numpy-rng", words="numpy"
    ),
    "gradient scaler": _bug(
        "amp",
        ('    "scaler": scaler,\n', ""),
        codes="scaler",
        words="scaler",
    ),
    "average": _bug("classifier", ('        ema.shadow = saved["ema"]\n', ""), codes="ema", words="ema.shadow"),
    "BatchNorm": _bug(
        "classifier",
        (
            'model.load_state_dict(saved["model"])',
            'model.load_state_dict({n: t for n, t in saved["model"].items() if "running" not in n}, strict=False)',
        ),
        codes="buffers",
        words="running_mean",
    ),
    "epoch": _bug(
        "classifier",
        (
            'seed, epoch, position, best = saved["seed"], saved["epoch"]',
            'seed, epoch, position, best = saved["seed"], 0',
        ),
        codes="counter data",
        words="epoch",
    ),
    "rank 0 saves alone": _bug(
        "ranks",
        ("    if wf.check_save():", "    if wf.check_save() and rank == 0:"),
        codes="one-rank",
        words="rank 1",
        ranks=2,
    ),
    "stale checkpoint": _bug(
        "classifier",
        (
            "            if wf.step():\n                everything",
            "            asked = wf.step()\n            if asked or position % 3 == 0:\n                everything",
        ),
        (
            (
                '                save(f"{epoch}-{position}.pt", everything)\n'
                '                wf.backup(f"{epoch}-{position}.pt")'
            ),
            (
                '                before, last = globals().get("last"), f"{epoch}-{position}.pt"\n'
                '                globals()["last"] = last\n'
                "                save(last, everything)\n"
                "                if asked:\n"
                "                    wf.backup(before)"
            ),
        ),
        codes="stale",
        words="step 10",
    ),
    "wrong module": _bug(
        "language",
        ('    model.load_state_dict(saved["model"])', '    wrapped.load_state_dict(saved["model"], strict=False)'),
        codes="wrapped",
        words="strict=False",
    ),
    "momentum": _bug(
        "classifier",
        (
            "        scheduler.load_state_dict",
            (
                "        for one in optimizer.state.values():\n"
                "            one['momentum_buffer'].zero_()\n"
                "        scheduler.load_state_dict"
            ),
        ),
        codes="optimizer",
        words="momentum_buffer of `optimizer` is zero",
    ),
    "learning rate": _bug(
        "classifier",
        (
            "    while epoch < EPOCHS:\n",
            "    for group in optimizer.param_groups:\n        group['lr'] = 0.1\n    while epoch < EPOCHS:\n",
        ),
        codes="lr",
        words="step 12 has lr 0.1",
    ),
    "accumulation": _bug(
        "language",
        ("        one.grad = gradient\n", "        one.grad = None\n"),
        codes="accumulation",
        words="accumulated before the save",
    ),
    "precision": _bug(
        "classifier",
        (
            '"model": model.state_dict(),',
            '"model": {n: t.half() if t.is_floating_point() else t for n, t in model.state_dict().items()},',
        ),
        codes="precision",
        words="float16",
    ),
    "shuffling": _bug(
        "classifier",
        ('seed, epoch, position, best = saved["seed"]', "seed, epoch, position, best = 5"),
        codes="data",
        words="other samples",
    ),
    "worker seeds": _bug(
        "workers",
        ("torch.manual_seed(seed)\nfor", "if not done:\n    torch.manual_seed(seed)\nfor"),
        codes="worker-seeds",
        words="workers",
    ),
    "off by one": _bug(
        "annealing",
        ('saved["step"], saved["best"]', 'saved["step"] - 1, saved["best"]'),
        codes="counter step-number",
        words="step",
    ),
    "frozen layers": _bug(
        "language",
        (
            '"model": model.state_dict(),',
            '"model": {n: t for n, t in model.state_dict().items() if "embedding" not in n},',
        ),
        ('model.load_state_dict(saved["model"])', 'model.load_state_dict(saved["model"], strict=False)'),
        codes="frozen",
        words="embedding",
    ),
    "update counter": _bug(
        "language", ('saved["micro"], saved["update"]', 'saved["micro"], 0'), codes="lr counter", words="`update`"
    ),
    "a rank's own data": _bug(
        "ranks", ('    chance.set_state(saved["chance"])\n', ""), codes="generator data", words="chance", ranks=2
    ),
    "never restored": _bug(
        "classifier", ("    if path := wf.last():", "    if path := None:"), codes="not-restored", words="wf.last()"
    ),
}

AUGMENT = ("            x = x + torch.from_numpy(np.random.normal(0, 0.05, x.shape)).float()\n", "")
RIGHT: dict[str, tuple[str, tuple[tuple[str, str], ...], int]] = {
    "classifier": ("classifier", (), 1),
    "language model": ("language", (), 1),
    "mixed precision": ("amp", (), 1),
    "adapter": ("adapter", (), 1),
    "adapter with workers": ("adapter", (("WORKERS = 0", "WORKERS = 2"),), 1),
    "ranks": ("ranks", (), 2),
    "no torch": ("annealing", (), 1),
    "no randomness, none saved": (
        "classifier",
        (
            ("nn.Dropout(0.3), ", ""),
            AUGMENT,
            ("            if random.random() < 0.5:\n                x = x.flip(1)\n", ""),
            ('        torch.set_rng_state(saved["torch"])\n        random.setstate(saved["python"])\n', ""),
            ('        np.random.set_state(saved["numpy"])\n', ""),
        ),
        1,
    ),
    "dropout that nobody seeds": (
        "classifier",
        (
            ("    torch.manual_seed(0)\n", "    torch.manual_seed(0)\n"),
            ('        torch.set_rng_state(saved["torch"])\n', "        torch.seed()\n"),
        ),
        1,
    ),
    "noise of the machine": (
        "classifier",
        (
            (
                "            loss = nn",
                "            x = x + 1e-4 * torch.randn(x.shape, generator=NOISE)\n            loss = nn",
            ),
            ("class Average", "NOISE = torch.Generator()\nNOISE.seed()\n\n\nclass Average"),
        ),
        1,
    ),
    "the clock": (
        "classifier",
        (
            (
                "            best = min(best, loss.item())\n",
                (
                    "            best = min(best, loss.item())\n"
                    "            elapsed = time.monotonic() - began\n"
                    "            steps_per_second = (position + epoch * BATCHES) / elapsed\n"
                ),
            ),
            ("import random\n", "import random\nimport time\n"),
            ("    ema = Average(model)\n", "    ema, began = Average(model), time.monotonic()\n"),
        ),
        1,
    ),
    "another order after every start": (
        "classifier",
        (
            (
                'seed, epoch, position, best = saved["seed"]',
                "seed, epoch, position, best = random.SystemRandom().randrange(10**9)",
            ),
        ),
        1,
    ),
    "counts of this process": (
        "classifier",
        (
            (
                "            position += 1\n",
                (
                    "            position += 1\n"
                    "            steps_here += 1\n"
                    "            losses.append(loss.item())\n"
                    "            running = 0.9 * running + 0.1 * loss.item()\n"
                ),
            ),
            (
                ("    ema = Average(model)\n"),
                ("    ema = Average(model)\n    steps_here, losses, running = 0, [], 0.0\n"),
            ),
        ),
        1,
    ),
    "a schedule made anew": (
        "classifier",
        (
            (
                '        scheduler.load_state_dict(saved["scheduler"])\n',
                (
                    "        scheduler = torch.optim.lr_scheduler.ExponentialLR("
                    'optimizer, 0.97, last_epoch=saved["scheduler"]["last_epoch"] - 1)\n'
                    '        optimizer.load_state_dict(saved["optimizer"])\n'
                ),
            ),
        ),
        1,
    ),
    "a buffer that is made anew": (
        "classifier",
        (
            (
                "    optimizer = torch",
                "    model.register_buffer('cache', torch.rand(3), persistent=False)\n    optimizer = torch",
            ),
            ("            loss = nn", "            model.cache += 1\n            loss = nn"),
        ),
        1,
    ),
    "an evaluation between": (
        "classifier",
        (
            (
                "            if wf.step():",
                (
                    "            if position % 4 == 0:\n"
                    "                model.eval()\n"
                    "                with wf.phase('evaluation'), torch.no_grad():\n"
                    "                    accuracy = (model(inputs).argmax(1) == targets).float().mean().item()\n"
                    "                model.train()\n"
                    "            if wf.step():"
                ),
            ),
        ),
        1,
    ),
    "a tiny model": (
        "classifier",
        (
            (
                "nn.Sequential(nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 2))",
                "nn.Linear(12, 2)",
            ),
        ),
        1,
    ),
    "plain gradient descent": ("classifier", ((", momentum=0.9", ""),), 1),
    "its own saves as well": (
        "classifier",
        (("            if wf.step():", "            if wf.step() or position % 3 == 0:"),),
        1,
    ),
    "an iterable data set": ("stream", (), 1),
    "numpy alone": ("regression", (), 1),
    "steps from the loader": ("steps", (), 1),
}

QUICK_BUGS = ("scheduler", "torch's random numbers", "off by one")
QUICK_RIGHT = ("classifier", "no torch")


def found(drill: Drill, name: str) -> None:
    """Drill a script with a bug, and see it named."""
    bug = BUGS[name]
    told = drill(script(bug.family, *bug.changes), ranks=bug.ranks)
    assert told["code"] == 5, told
    first = [one for one in told["forgotten"] if one["code"] in bug.codes and bug.words in one["message"]]
    assert first, told["forgotten"]
    assert {one["code"] for one in told["forgotten"]} <= bug.codes, told["forgotten"]


def left_in_peace(drill: Drill, name: str) -> None:
    """Drill a script that resumes, and hear nothing."""
    family, changes, ranks = RIGHT[name]
    told = drill(script(family, *changes), ranks=ranks)
    assert (told["code"], told.get("forgotten")) == (0, []), told


@pytest.mark.real
@pytest.mark.parametrize("name", QUICK_BUGS)
def test_a_bug_is_found_and_named(name: str, drill_warm: Drill) -> None:
    """What a script forgets to save is named, with numbers."""
    found(drill_warm, name)


@pytest.mark.real
@pytest.mark.parametrize("name", QUICK_RIGHT)
def test_a_script_that_resumes_is_left_in_peace(name: str, drill_warm: Drill) -> None:
    """A script that saves everything gets no complaint."""
    left_in_peace(drill_warm, name)


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(BUGS) - set(QUICK_BUGS)))
def test_every_bug_is_found_and_named(name: str, drill_warm: Drill) -> None:
    """The other planted bugs: each is found, rightly named, and nothing else is."""
    found(drill_warm, name)


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(RIGHT) - set(QUICK_RIGHT)))
def test_no_script_that_resumes_is_blamed(name: str, drill_warm: Drill) -> None:
    """The other scripts that resume, the unpredictable ones among them: no false alarm."""
    left_in_peace(drill_warm, name)
