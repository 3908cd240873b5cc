"""Keys of what items are restarted from, relative to the URL of a bag's run.

items/restart/<item>/saves/<number>-<place>         a save: created after its files, and never changed
items/restart/<item>/files/<number>-<place>/0000    its files

The number is that of the lease, so a try that has lost its lease overwrites nothing of a later one, and what it still
saves is older than what the later one saved.
"""

from __future__ import annotations

from windfall import codec
from windfall.bags import VERSION, ItemLease, ItemSave

RESTART = "items/restart/"


def item_prefix(item: int) -> str:
    """Return what the keys of all saves of an item start with."""
    return f"{RESTART}{item}/"


def saves_prefix(item: int) -> str:
    """Return what the keys of the documents of an item's saves start with; their order is that of their age."""
    return f"{item_prefix(item)}saves/"


def item_of_save(key: str) -> int:
    """Return the item whose save has its document under a key; -1 if the key is that of no document."""
    item, _, rest = key.removeprefix(RESTART).partition("/")
    return int(item) if item.isdecimal() and rest.startswith("saves/") else -1


def save_key(lease: ItemLease, place: int) -> str:
    """Return the key of a save: the `place`-th one (from 1) under a lease."""
    return f"{saves_prefix(lease.item)}{_name(lease, place)}"


def save_files_prefix(lease: ItemLease, place: int) -> str:
    """Return what the keys of the files of a save start with."""
    return f"{item_prefix(lease.item)}files/{_name(lease, place)}/"


def save_file_key(lease: ItemLease, place: int, file: int) -> str:
    """Return the key of a file of a save."""
    return f"{save_files_prefix(lease, place)}{file:04d}"


def _name(lease: ItemLease, place: int) -> str:
    return f"{lease.number:08d}-{place:08d}"


def save_to_bytes(save: ItemSave) -> bytes:
    """Write a save."""
    return codec.encode_document(VERSION, "save", save)


def save_from_bytes(data: bytes) -> ItemSave:
    """Read a save; raises as `codec.decode_document`."""
    save: ItemSave = codec.decode_document(data, "save", ItemSave, version=VERSION, what="an item's save")
    return save
