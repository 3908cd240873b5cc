"""A server in a process of its own that takes an S3 client's uploads and throws them away, as fast as Python can."""

from __future__ import annotations

import socket
import threading

BUFFER_BYTES = 1 << 20
STARTED = b"<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>"
ENDED = b"<CompleteMultipartUploadResult><ETag>e</ETag></CompleteMultipartUploadResult>"


def serve(connection: socket.socket) -> None:
    """Answer one connection's requests until it ends."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    buffer = memoryview(bytearray(BUFFER_BYTES))
    received = b""
    while True:
        while b"\r\n\r\n" not in received:
            piece = connection.recv(1 << 16)
            if not piece:
                return
            received += piece
        head, _, body = received.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", 0))
        if headers.get("expect", "").lower() == "100-continue":
            connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        left = length - len(body)
        while left > 0:
            left -= connection.recv_into(buffer, min(left, len(buffer)))
        received = body[length:]
        answer = b"" if not first.startswith("POST") else ENDED if "uploadId" in first else STARTED
        connection.sendall(b'HTTP/1.1 200 OK\r\nETag: "e"\r\nContent-Length: %d\r\n\r\n' % len(answer) + answer)


def main() -> None:
    """Say the port, then serve until killed."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    print(listener.getsockname()[1], flush=True)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=serve, args=(connection,), daemon=True).start()


if __name__ == "__main__":
    main()
