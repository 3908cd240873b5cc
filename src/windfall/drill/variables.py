"""A script's state as a drill sees it: the variables of its own functions and modules, and everything they hold.

The drill's messages use the variables' names.  Objects of Python or of installed packages are not followed, except those
in which torch and numpy keep state.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import sysconfig
import types
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from windfall.drill import digest
from windfall.drill.digest import Record

DEPTH_MAX = 5
ENTRIES_MAX = 500
"""Entries of a list or dict that are followed at most."""

Items = dict[str, Record]
_STATELESS = (str, bytes, type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType)
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_INSTALLED = tuple(
    {sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")} | {_PACKAGE}
)
_HARMLESS_OF_SCHEDULERS = frozenset({"_step_count", "_get_lr_called_within_step", "_is_initial", "verbose"})


class VariableWalk:
    """One record of a script's state.

    Attributes:
        items: what was found, as `channel:name|detail`.
        optimizers: every optimizer found, by its name.
    """

    def __init__(self, known: Mapping[str, object]) -> None:
        self.items: Items = {}
        self.optimizers: dict[str, Any] = {}
        self._modules: dict[str, Any] = {}
        self._arrays: list[tuple[str, Any]] = []
        self._seen: set[int] = set()
        self._held: list[Any] = []
        self._known = known

    def collect(self, frame: types.FrameType | None) -> None:
        """Record everything that can be reached from the script's frames, and what torch's hooks have registered."""
        queue: deque[tuple[str, Any, int]] = deque()
        for name, value in _variables(frame):
            queue.append((name, value, 0))
        queue.extend((name, value, 0) for name, value in self._known.items())
        while queue:
            name, value, depth = queue.popleft()
            # Recording must not end the script, whatever an object does when its attributes are read.
            with contextlib.suppress(Exception):
                queue.extend((inner, one, depth + 1) for inner, one in self._visit(name, value, depth))
        self._finish()

    # ---------------------------------------------------------------------------------------------------- one value

    def _visit(self, name: str, value: Any, depth: int) -> Sequence[tuple[str, Any]]:
        if value is None or isinstance(value, (bool, int, float)):
            self.items.setdefault(f"value:{name}", digest.scalar(value))
            return ()
        if isinstance(value, _STATELESS) or id(value) in self._seen or depth > DEPTH_MAX:
            return ()
        self._seen.add(id(value))
        self._held.append(value)
        if digest.is_tensor(value) or digest.is_array(value):
            self._arrays.append((name, value))
        elif not self._chance(name, value) and not self._framework(name, value):
            return self._entries(name, value)
        return ()

    def _entries(self, name: str, value: Any) -> Sequence[tuple[str, Any]]:
        if isinstance(value, dict):  # other mappings may be files, and reading them may have effects
            self._size(name, value)
            pairs = [(key, one) for key, one in list(value.items())[:ENTRIES_MAX] if isinstance(key, (str, int))]
            return [(f"{name}[{key}]", one) for key, one in pairs]
        if isinstance(value, (list, tuple, deque)):
            return self._sequence(name, value)
        return self._object(name, value)

    def _chance(self, name: str, value: Any) -> bool:
        """Record a random generator; return whether the value is one."""
        numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
        if isinstance(value, random.Random):
            state: Any = value.getstate()
        elif numpy is not None and isinstance(value, numpy.random.Generator):
            state = repr(value.bit_generator.state)
        elif numpy is not None and isinstance(value, numpy.random.RandomState):
            state = repr([str(part) for part in value.get_state()])
        elif torch is not None and isinstance(value, torch.Generator):
            state = bytes(value.get_state().tolist())
        else:
            return False
        self.items[f"rng:{name}"] = {"d": digest.bytes_digest(state)}
        return True

    def _framework(self, name: str, value: Any) -> bool:
        """Record an object in which torch keeps state; return whether the value is one."""
        torch = sys.modules.get("torch")
        if torch is None or not hasattr(torch, "optim"):
            return False
        if isinstance(value, torch.nn.Module):
            self._modules[name] = value
        elif isinstance(value, torch.optim.Optimizer):
            self.optimizers[name] = value
            _optimizer(self.items, name, value)
        elif isinstance(value, torch.utils.data.DataLoader):
            return True
        elif isinstance(value, torch.utils.data.Dataset) and not hasattr(value, "state_dict"):
            self._dataset(name, value)
        elif not _is_users(type(value)) and hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
            channel = "scaler" if "Scaler" in type(value).__name__ else "state"
            channel = "sched" if isinstance(value, torch.optim.lr_scheduler.LRScheduler) else channel
            _states(self.items, f"{channel}:{name}", value.state_dict())
        else:
            return False
        return True

    def _dataset(self, name: str, value: Any) -> None:
        """Record how a dataset makes its samples, but not the samples."""
        if not _is_users(type(value)):
            return
        for inner, one in _attributes(value):
            if isinstance(one, (int, float)):
                self.items[f"value:{name}.{inner}"] = digest.scalar(one)
            else:
                self._chance(f"{name}.{inner}", one)

    def _sequence(self, name: str, value: Sequence[Any]) -> Sequence[tuple[str, Any]]:
        self._size(name, value)
        if value and all(isinstance(one, (int, float)) and not isinstance(one, bool) for one in value):
            self.items[f"list:{name}"] = digest.numbers(tuple(value))
            return ()
        return [(f"{name}[{number}]", one) for number, one in enumerate(list(value)[:ENTRIES_MAX])]

    def _size(self, name: str, value: Any) -> None:
        if isinstance(value, (list, dict, deque)):
            self.items[f"size:{name}"] = digest.scalar(len(value))

    def _object(self, name: str, value: Any) -> Sequence[tuple[str, Any]]:
        if isinstance(value, types.GeneratorType):
            frame = value.gi_frame
            if frame is None or not is_users_file(frame.f_code.co_filename):
                return ()
            return [(f"{name}.{inner}", one) for inner, one in frame.f_locals.items()]
        if type(value).__module__ == "windfall.sdk.torch":
            return list(getattr(value, "_objects", {}).items())
        if isinstance(value, types.MethodType) or not _is_users(type(value)):
            return ()
        return [(f"{name}.{inner}", one) for inner, one in _attributes(value)]

    # -------------------------------------------------------------------------------------------- after all variables

    def _finish(self) -> None:
        """Record modules, each under its outermost owner, then arrays that belong to no module."""
        inner = {id(part) for module in self._modules.values() for part in module.modules() if part is not module}
        taken: set[int] = set()
        for name, module in self._modules.items():
            if id(module) not in inner:
                _module(self.items, name, module, taken)
        taken |= _storage(self._modules.values())
        for name, value in self._arrays:
            if id(value) in taken or (digest.is_tensor(value) and value.numel() and value.data_ptr() in taken):
                continue
            self.items[f"array:{name}"] = digest.tensor(value) if digest.is_tensor(value) else digest.array(value)


def random_states() -> Items:
    """Return digests of the global random generators that this process uses."""
    found: Items = {"rng:python": {"d": digest.bytes_digest(random.getstate())}}
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and hasattr(numpy, "random"):
        name, keys, *rest = numpy.random.get_state()
        found["rng:numpy"] = {"d": digest.bytes_digest(name, keys.tobytes(), rest)}
    if torch is not None and hasattr(torch, "get_rng_state"):
        found["rng:torch"] = {"d": digest.bytes_digest(memoryview(torch.get_rng_state().numpy()))}
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            states = [memoryview(one.cpu().numpy()) for one in torch.cuda.get_rng_state_all()]
            found["rng:cuda"] = {"d": digest.bytes_digest(*states)}
    return found


def is_users_file(path: str) -> bool:
    """Return whether a source file is the user's, not part of Python, an installed package or Windfall."""
    if path.startswith("<"):
        return False
    return not os.path.abspath(path).startswith(_INSTALLED) and "site-packages" not in path


def _is_users(cls: type) -> bool:
    module = sys.modules.get(cls.__module__)
    file = getattr(module, "__file__", None)
    return file is not None and is_users_file(file)


def _attributes(value: Any) -> list[tuple[str, Any]]:
    """Return an object's attributes, including numbers that its class defines."""
    own = getattr(value, "__dict__", {})
    shared = {
        name: one
        for kind in reversed(type(value).__mro__)
        if _is_users(kind)
        for name, one in vars(kind).items()
        if isinstance(one, (int, float)) and not name.startswith("_")
    }
    return list({**shared, **own}.items())[:ENTRIES_MAX]


def _variables(frame: types.FrameType | None) -> Iterator[tuple[str, Any]]:
    """Yield the variables of the script's functions, innermost first, then those of its modules."""
    modules: dict[int, Mapping[str, Any]] = {}
    while frame is not None:
        if is_users_file(frame.f_code.co_filename):
            modules[id(frame.f_globals)] = frame.f_globals
            if frame.f_locals is not frame.f_globals:
                yield from _named(frame.f_locals)
        frame = frame.f_back
    for found in modules.values():
        yield from _named(found)


def _named(variables: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in list(variables.items()) if not name.startswith("__")]


def _module(items: Items, root: str, module: Any, taken: set[int]) -> None:
    """Record parameters and persistent buffers, without the prefixes of wrappers."""
    passing = {
        f"{prefix}.{name}".lstrip(".")
        for prefix, part in module.named_modules()
        for name in part._non_persistent_buffers_set
    }
    buffers = [(name, one) for name, one in module.named_buffers() if name not in passing]
    for channel, named in (("param", list(module.named_parameters())), ("buffer", buffers)):
        for name, one in named:
            items[f"{channel}:{root}|{_plain(name)}"] = digest.tensor(one)
    taken |= {id(one) for one in (*module.parameters(), *module.buffers())}
    for prefix, part in module.named_modules():
        if _is_users(type(part)):
            for name, one in vars(part).items():
                if not name.startswith("_") and name != "training" and isinstance(one, (int, float)):
                    items[f"value:{root}.{_plain(f'{prefix}.{name}').lstrip('.')}"] = digest.scalar(one)


def _storage(modules: Any) -> set[int]:
    """Return the addresses of the modules' tensors, so that views of the same memory are not recorded again."""
    tensors = [one for module in modules for one in (*module.parameters(), *module.buffers())]
    return {one.data_ptr() for one in tensors if one.numel() and not hasattr(one, "to_local")}


def _plain(name: str) -> str:
    return name.removeprefix("module.").removeprefix("_orig_mod.").removeprefix("module.")


def _optimizer(items: Items, name: str, optimizer: Any) -> None:
    number = 0
    for index, group in enumerate(optimizer.param_groups):
        for key, value in group.items():
            if key not in ("params", "lr", "initial_lr", "param_names"):
                _states(items, f"optim:{name}|group {index} {key}", value)
        for one in group["params"]:
            for key, value in optimizer.state.get(one, {}).items():
                _states(items, f"optim:{name}|{key} {number}", value)
            number += 1


def _states(items: Items, key: str, state: Any, depth: int = 0) -> None:
    """Record a state as returned by `state_dict`."""
    joint = " " if "|" in key else "|"
    if digest.is_tensor(state):
        items[key] = digest.tensor(state)
    elif digest.is_array(state):
        items[key] = digest.array(state)
    elif state is None or isinstance(state, (bool, int, float)):
        items[key] = digest.scalar(state)
    elif depth < DEPTH_MAX and isinstance(state, Mapping):
        for name, one in list(state.items())[:ENTRIES_MAX]:
            if name not in _HARMLESS_OF_SCHEDULERS:
                _states(items, f"{key}{joint}{name}", one, depth + 1)
    elif depth < DEPTH_MAX and isinstance(state, (list, tuple)):
        for index, one in enumerate(state[:ENTRIES_MAX]):
            _states(items, f"{key}{joint}{index}", one, depth + 1)
