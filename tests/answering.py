"""A web server of a test's own, which says what the test wants it to say."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

#: The status and the body; None: it hangs up instead.
Answer = tuple[int, bytes] | None


@contextmanager
def answering(answer: Callable[[str, Mapping[str, str], bytes], Answer]) -> Iterator[str]:
    """Its address. Each request is answered by its path, its headers and its body."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            said = answer(self.path, self.headers, body)
            if said is None:
                self.close_connection = True
                return
            self.send_response(said[0])
            self.send_header("Content-Length", str(len(said[1])))
            self.end_headers()
            self.wfile.write(said[1])

        do_GET = do_PUT = do_POST

        def log_message(self, *_: object) -> None:
            """Nothing on the screen."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
