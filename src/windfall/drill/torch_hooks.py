"""What a drill observes in torch: losses, batches, forward passes and updates; by torch's own hooks where they exist."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING, Any

from windfall.drill import digest

if TYPE_CHECKING:
    from windfall.drill.watch import Watch

KNOWN_MAX = 50
"""Optimizers, schedulers and models that no variable holds are tracked up to this number of each."""


def when_imported(watch: Watch) -> None:
    """Hook into torch once the script has imported it."""
    if "torch" in sys.modules:
        _install(watch)
        return
    sys.meta_path.insert(0, _Finder(lambda: _install(watch)))


class _Finder(MetaPathFinder):
    """Lets the other finders load torch, and calls a function afterwards."""

    def __init__(self, then: Callable[[], None]) -> None:
        self._then = then

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        for finder in sys.meta_path:
            spec = finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _LoaderWithCallback(spec.loader, self._then)
                return spec
        return None


class _LoaderWithCallback(Loader):
    """A loader that calls a function after its module is loaded."""

    def __init__(self, inner: Any, then: Callable[[], None]) -> None:
        self._inner = inner
        self._then = then

    def create_module(self, spec: ModuleSpec) -> Any:
        return self._inner.create_module(spec)

    def exec_module(self, module: Any) -> None:
        self._inner.exec_module(module)
        self._then()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def _install(watch: Watch) -> None:
    torch = sys.modules["torch"]
    _hook_forwards(watch, torch)
    _hook_losses(watch, torch)
    _hook_updates(watch)
    _hook_loaders(watch, torch)
    _hook_state_loads(watch, torch)
    _hook_constructor(watch, torch.optim.lr_scheduler.LRScheduler, "scheduler")
    _hook_constructor(watch, torch.optim.Optimizer, "optimizer")


def _hook_forwards(watch: Watch, torch: Any) -> None:
    """Observe each training forward pass, at its outermost module."""
    open_passes: list[int] = []

    def before(module: Any, inputs: Any) -> None:
        if torch.compiler.is_compiling():
            return
        open_passes.append(id(module))
        if len(open_passes) == 1 and module.training and torch.is_grad_enabled():
            _register(watch, "model", module)
            watch.forward(sys._getframe(1), inputs)

    def after(_module: Any, _inputs: Any, _output: Any) -> None:
        if open_passes and not torch.compiler.is_compiling():
            open_passes.pop()

    torch.nn.modules.module.register_module_forward_pre_hook(before)
    torch.nn.modules.module.register_module_forward_hook(after, always_call=True)


def _hook_losses(watch: Watch, torch: Any) -> None:
    plain = torch.Tensor.backward

    def backward(self: Any, *arguments: Any, **more: Any) -> Any:
        if watch.active and self.numel() == 1:
            watch.loss(sys._getframe(1), float(self.detach()))
        return plain(self, *arguments, **more)

    torch.Tensor.backward = backward


def _hook_updates(watch: Watch) -> None:
    """Observe each update just before it happens."""

    def before(optimizer: Any, _arguments: Any, _more: Any) -> None:
        if not watch.active:
            return
        name = _register(watch, "optimizer", optimizer)
        rates = {f"{name}|{index}": _number(group["lr"]) for index, group in enumerate(optimizer.param_groups)}
        params = [one for group in optimizer.param_groups for one in group["params"]]
        gradients = {
            f"grad:{name}|{number}": digest.tensor(one.grad)
            for number, one in enumerate(params)
            if one.grad is not None and not one.grad.is_sparse
        }
        watch.update(sys._getframe(1), rates, gradients)

    sys.modules["torch.optim.optimizer"].register_optimizer_step_pre_hook(before)


def _number(value: Any) -> float:
    return float(value)


def _hook_loaders(watch: Watch, torch: Any) -> None:
    """Observe each batch, and the indices that its sampler drew."""
    iterator = torch.utils.data.dataloader._BaseDataLoaderIter
    plain_next, plain_index = iterator.__next__, iterator._next_index

    def next_index(self: Any) -> Any:
        drawn = plain_index(self)
        if watch.active:
            self.__dict__.setdefault("_drill_ids", deque()).append(drawn)
        return drawn

    def following(self: Any) -> Any:
        batch = plain_next(self)
        if watch.active:
            drawn = self.__dict__.get("_drill_ids")
            ids = drawn.popleft() if drawn else None
            by_number = isinstance(ids, (list, tuple)) and not all(one is None for one in ids)
            known = ids if by_number or isinstance(ids, int) else None
            watch.batch(known, batch, workers=getattr(self, "_num_workers", 0))
        return batch

    iterator.__next__, iterator._next_index = following, next_index


def _hook_state_loads(watch: Watch, torch: Any) -> None:
    """Observe states that do not fit the module that loads them."""
    plain = torch.nn.Module.load_state_dict

    def load_state_dict(self: Any, state: Any, *arguments: Any, **more: Any) -> Any:
        result = plain(self, state, *arguments, **more)
        missing, unexpected = getattr(result, "missing_keys", ()), getattr(result, "unexpected_keys", ())
        if watch.active:
            some = [*(f"{one} is missing" for one in missing[:1]), *(f"{one} is extra" for one in unexpected[:1])]
            name = type(self).__name__
            watch.loaded(
                f"{name} loaded a state with strict=False that does not fit: {', '.join(some)}" if some else None
            )
        return result

    torch.nn.Module.load_state_dict = load_state_dict


def _hook_constructor(watch: Watch, kind: Any, name: str) -> None:
    """Register every object of a class, whether or not a variable of the script holds it."""
    plain = kind.__init__

    def made(self: Any, *arguments: Any, **more: Any) -> None:
        plain(self, *arguments, **more)
        _register(watch, name, self)

    kind.__init__ = made


def _register(watch: Watch, name: str, thing: Any) -> str:
    """Register an object for the next record of the state; return the name it has if no variable holds it."""
    for known, other in watch.known.items():
        if other is thing:
            return known
    number = sum(1 for known in watch.known if known.startswith(f"({name}"))
    title = f"({name})" if number == 0 else f"({name} {number + 1})"
    if number < KNOWN_MAX:
        watch.known[title] = thing
    return title
