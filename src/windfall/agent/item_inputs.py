"""What items need before they start: objects of the run, whose keys are parameters of theirs, as files on the machine.

They are fetched before the runner learns that it has the items, so that no slot waits for them, and removed with the last
item that needs them.  An object that many items name is fetched once.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from windfall.bags import Bag, ItemGrant
from windfall.ports import ObjectStore
from windfall.wire import environment
from windfall.wire.python_programs import interpreter


class ItemInputs:
    """The files that items of a runner need; calls come from one thread.

    Args:
        folder: for the files, of this runner alone.
        code: the folder with the user's code.
        bag: says which parameters are keys.
        store: of the run.
    """

    def __init__(self, folder: Path, code: str, bag: Bag, store: ObjectStore) -> None:
        self._folder, self._code, self._store = folder, code, store
        self._places = [bag.parameters.index(name) for name in bag.inputs]
        self._here: set[str] = set()

    def variables(self) -> Mapping[str, str]:
        """Return the variables by which an item finds its inputs, the code, and a Python that has this product."""
        if not self._places:
            return {}
        return {
            environment.CALL_PYTHON: interpreter(),
            environment.CALL_INPUTS: str(self._folder),
            environment.CALL_CODE: self._code,
        }

    def fetch(self, grant: ItemGrant) -> None:
        """Fetch what the items of a grant need, and remove what none of them does.

        Raises:
            StoreError: an object cannot be read now.
        """
        needed = {str(item.values[place]) for item in grant.items for place in self._places}
        for key in sorted(self._here - needed):
            self._path(key).unlink(missing_ok=True)
            self._here.discard(key)
        for key in sorted(needed - self._here):
            data = self._store.get(key)
            # An item whose input is lost says so when it starts.
            if data is not None:
                self._path(key).parent.mkdir(parents=True, exist_ok=True)
                self._path(key).write_bytes(data)
            self._here.add(key)

    def _path(self, key: str) -> Path:
        return self._folder / key
