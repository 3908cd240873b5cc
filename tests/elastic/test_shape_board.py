"""The TCP store in which machines of an elastic training meet their coordinator."""

from __future__ import annotations

import socket

import pytest

from windfall.linux.listening import OpenSocket, free_port


def test_the_board_listens_at_the_machines_address_alone() -> None:
    """Torch by itself listens on all addresses, and asks for no token; `doctor` says that it has none."""
    pytest.importorskip("torch", reason="torch is not installed: pip install 'windfall[elastic]'")
    from windfall.runtimes.shape_node import BoardLost, TcpBoard

    port = free_port("127.0.0.1")
    board = TcpBoard("127.0.0.1", port)
    socket.create_connection(("127.0.0.1", port), timeout=5.0).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port), timeout=5.0)
    with pytest.raises(BoardLost, match=f"cannot be opened at 127.0.0.1:{port}"):
        TcpBoard("127.0.0.1", port)
    assert board.reports() == []
    assert not OpenSocket("windfall.cli.shape_process", "10.0.0.1", port, 1, "").guarded
    assert OpenSocket("windfall.cli.controller_process", "10.0.0.1", port, 1, "").guarded
