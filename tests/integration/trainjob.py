"""The status server of a Kubeflow TrainJob, as its pods see it: HTTPS, a token, and three variables."""

from __future__ import annotations

import json
import ssl
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any


class StatusServer:
    """Takes what pods post, and keeps it."""

    def __init__(self, folder: Path) -> None:
        self.statuses: list[dict[str, Any]] = []
        self.tokens: set[str] = set()
        certificate, key, token = folder / "ca.crt", folder / "key.pem", folder / "token"
        subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
        made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject]
        subprocess.run([*made, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
        token.write_text("secret\n", encoding="utf-8")
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        path = "apis/trainer.kubeflow.org/v1alpha1/namespaces/mine/trainjobs/job/status"
        self.variables = {
            "KUBEFLOW_TRAINER_SERVER_URL": f"https://localhost:{self._server.server_port}/{path}",
            "KUBEFLOW_TRAINER_SERVER_CA_CERT": str(certificate),
            "KUBEFLOW_TRAINER_SERVER_TOKEN": str(token),
        }

    def _handler(server: StatusServer) -> type[BaseHTTPRequestHandler]:  # noqa: N805
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                document = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                server.statuses.append(document["trainerStatus"])
                server.tokens.add(self.headers["Authorization"])
                self.send_response(200)
                self.end_headers()

            def log_message(self, *words: object) -> None:
                pass

        return Handler

    def __enter__(self) -> StatusServer:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
