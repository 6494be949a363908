"""A live view of runs in training: a server for this machine alone, which reads folders and writes nothing."""

import json
import os
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np

from worstclass.errors import UserError
from worstclass.inputs.names import RECIPE
from worstclass.metrics.tail import has_many
from worstclass.report.epochs import epoch_data
from worstclass.runs.run import Run, open_run
from worstclass.runs.saver import ABOUT, LOG

ADDRESS = "127.0.0.1"  # never that of a network
KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
PAGES = {
    "/": "watch.html",
    "/page.css": "page.css",
    "/d3.js": "vendor/d3.min.js",
    "/plot.js": "vendor/plot.umd.min.js",
    "/charts.js": "charts.js",
    "/watch.js": "watch.js",
}
HEADERS = {  # nothing from elsewhere, nothing for elsewhere; Plot writes styles into its charts
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; connect-src 'self'; img-src data:; "
    "style-src 'self' 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class Watch:
    """The runs in a folder: the folder itself if it is a run, and those that lie in it, such as those of a sweep.

    What was read is kept until a file of the run changes.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, tuple[object, dict[str, Any], dict[str, Any]]] = {}
        self._lock = Lock()  # requests come in threads
        if not folder.is_dir():
            raise UserError(f"there is no folder {folder} to watch.")
        if not self.folders():
            raise UserError(f"{folder} holds no run: give a run folder, or the folder of a sweep.")

    def folders(self) -> dict[str, Path]:
        """Run folders by name, as they are now."""
        own = {self._folder.resolve().name: self._folder} if _is_run(self._folder) else {}
        try:
            inside = [path for path in sorted(self._folder.iterdir()) if _is_run(path)]
        except OSError:  # it was removed
            inside = []
        before = f"{next(iter(own))}/" if own else ""  # a run may hold its base
        return own | {f"{before}{path.name}": path for path in inside}

    def overview(self) -> list[dict[str, Any]]:
        """How far each run is."""
        return [self._look(name, folder)[0] for name, folder in self.folders().items()]

    def details(self, name: str) -> dict[str, Any] | None:
        """The epochs of one run, for the charts; None if there is no such run."""
        folder = self.folders().get(name)
        return None if folder is None else self._look(name, folder)[1]

    def _look(self, name: str, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
        stamps = [_stamp(folder / file) for file in (RECIPE, ABOUT, LOG)]
        with self._lock:
            known, row, details = self._read.get(folder, (None, {}, {}))
            if known != stamps:
                row, details = _read(name, folder)
                self._read[folder] = stamps, row, details
        written = stamps[-1][0]
        return row | {"age": round(time.time() - written / 1e9) if written else None}, details


def _is_run(folder: Path) -> bool:
    return os.path.isfile(folder / RECIPE)  # False, not an error, where we may not look


def _stamp(path: Path) -> tuple[int, int]:
    """When it was written and how long it is; zeros if it is not there."""
    try:
        found = path.stat()
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_size


def _read(name: str, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    row: dict[str, Any] = {"name": name, "title": name, "epoch": 0}
    try:
        if not (folder / ABOUT).is_file():
            return row | {"note": "has not started"}, {}
        run = open_run(folder)
        row |= {"title": _title(run), "epochs": run.config.epochs}
        if not (folder / LOG).is_file() or not (log := run.log):
            return row | {"note": "no epoch has ended"}, {}
        return row | _progress(run, log), _details(run, log)
    except (UserError, OSError) as error:  # of one run: the others are shown
        return row | {"note": str(error)}, {}


def _title(run: Run) -> str:
    """How a run is called, and by which attack it is validated if not by PGD."""
    return run.config.title + (", validation by CW" if run.config.valid_attack == "cw" else "")


def _progress(run: Run, log: list[dict[str, Any]]) -> dict[str, Any]:
    last = log[-1]
    accuracy = last["class_robust_accuracy"]
    kept = [line["epoch"] for line in log if line["selected"]]
    return {
        "epoch": last["epoch"],
        "average": last["valid"]["robust_accuracy"],
        "worst": min(accuracy),
        "worst_class": run.class_names[int(np.argmin(accuracy))],
        "kept": kept[-1] if kept else None,
    }


def _details(run: Run, log: list[dict[str, Any]]) -> dict[str, Any]:
    last = log[-1]
    return {
        "title": _title(run),
        "classes": run.class_names,
        "many": has_many(len(run.class_names)),
        "log": epoch_data(log),
        "now": {"accuracy": last["class_robust_accuracy"], "weight": last["class_weights"]},
    }


def make_server(folder: Path, port: int = 0) -> ThreadingHTTPServer:
    """A server of the view at 127.0.0.1, on a free port if none is given; `serve_forever` runs it."""
    watch = Watch(folder)
    handler = type("Handler", (_Handler,), {"watch": watch})
    try:
        return ThreadingHTTPServer((ADDRESS, port), handler)
    except OSError as error:
        raise UserError(f"port {port} cannot be had ({error.strerror}): leave --port out for a free one.") from None


class _Handler(BaseHTTPRequestHandler):
    watch: Watch
    server_version, sys_version = "worstclass", ""
    timeout = 30  # seconds for a request to arrive

    def do_GET(self) -> None:
        port = self.connection.getsockname()[1]
        if self.headers.get("Host") not in (f"{ADDRESS}:{port}", f"localhost:{port}"):
            return self._send(HTTPStatus.FORBIDDEN, "text/plain", b"This server answers to its own address alone.\n")
        try:
            url = urlsplit(self.path)
            name = parse_qs(url.query, max_num_fields=5).get("name", [""])[0]
        except ValueError:
            return self._send(HTTPStatus.BAD_REQUEST, "text/plain", b"What is asked for cannot be read.\n")
        if url.path in PAGES and not url.netloc:
            asset = PAGES[url.path]
            kind = KINDS[Path(asset).suffix]
            return self._send(HTTPStatus.OK, kind, files("worstclass.report").joinpath(asset).read_bytes())
        found: Any = None
        if url.path == "/runs.json" and not url.netloc:
            found = self.watch.overview()
        elif url.path == "/run.json" and not url.netloc:
            found = self.watch.details(name)  # a name in a table, never a path
        if found is None:
            return self._send(HTTPStatus.NOT_FOUND, "text/plain", b"There is nothing here.\n")
        return self._send(HTTPStatus.OK, "application/json", json.dumps(found).encode())

    do_HEAD = do_GET

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        try:
            self.send_response(status)
            headers = {"Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(body))}
            for key, value in (headers | HEADERS).items():
                self.send_header(key, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)
        except ConnectionError:  # the page was closed
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the terminal has one line."""
