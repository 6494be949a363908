"""The server behind `worstclass watch`: what it shows as a log grows, and what it refuses."""

import http.client
import json
import re
import shutil
import socket
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from many_classes import EPOCHS, made_up
from tiny import tiny_config, write_tiny_npz
from worstclass.cli.board import Row
from worstclass.cli.main import app
from worstclass.errors import UserError
from worstclass.report.watch import PAGES, Watch, make_server
from worstclass.runs.saver import ABOUT, LOG
from worstclass.runs.train import train_run
from worstclass.sweep.plan import Job


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs, one of many classes; beside them what a sweep has too."""
    root = tmp_path_factory.mktemp("watch")
    for method, classes in (("trades", 10), ("wat", 43)):
        made_up(root / f"{method}-seed1", classes, method=method)
    (root / "sweep.json").write_text("{}")
    (root / "notes").mkdir()
    return root


@pytest.fixture
def sweep(made: Path, tmp_path: Path) -> Path:
    """A copy, and a secret beside it."""
    (tmp_path / "secret").write_text("secret")
    return Path(shutil.copytree(made, tmp_path / "sweep"))


@pytest.fixture
def server(sweep: Path) -> Iterator[ThreadingHTTPServer]:
    with make_server(sweep) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(
    server: ThreadingHTTPServer, path: str, host: str | None = None, method: str = "GET"
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    connection.putrequest(method, path, skip_host=True)
    if host != "":
        connection.putheader("Host", host or f"127.0.0.1:{server.server_port}")
    connection.endheaders()
    answer = connection.getresponse()
    found = answer.status, dict(answer.getheaders()), answer.read()
    connection.close()
    return found


def get(server: ThreadingHTTPServer, path: str) -> Any:
    status, _, body = ask(server, path)
    assert status == 200
    return json.loads(body)


def test_it_shows_runs_and_their_epochs(server: ThreadingHTTPServer, sweep: Path) -> None:
    rows = get(server, "/runs.json")
    assert [row["name"] for row in rows] == ["trades-seed1", "wat-seed1"]
    assert [(row["epoch"], row["epochs"]) for row in rows] == [(EPOCHS, EPOCHS)] * 2
    last = json.loads((sweep / "wat-seed1" / LOG).read_text().splitlines()[-1])
    assert rows[1]["worst"] == min(last["class_robust_accuracy"])
    few, many = (get(server, f"/run.json?name={row['name']}") for row in rows)
    assert len(few["log"]["class_weights"]) == EPOCHS
    assert len(many["log"]["class_weights"]["bands"]) == EPOCHS
    assert (few["many"], many["many"], len(many["classes"])) == (False, True, 43)
    assert many["now"]["weight"] == last["class_weights"]


def test_it_names_the_attack_of_validation(tmp_path: Path) -> None:
    """But PGD, which is what a run has unless it says otherwise."""
    config = tiny_config(write_tiny_npz(tmp_path / "tiny.npz"), epochs=1)
    titles = []
    for attack in ("pgd", "cw"):
        run = train_run(config.model_copy(update={"valid_attack": attack}), tmp_path / attack)
        row = Row(Job(attack, run.folder, run.config), done=True)
        assert row.valid.startswith("CW ") == (attack == "cw")
        titles += [row["title"] for row in Watch(run.folder).overview()]
    assert titles == ["WAT", "WAT, validation by CW"]


def test_a_log_that_grows_is_followed(server: ThreadingHTTPServer, sweep: Path) -> None:
    """Half a line at its end is not read; a run that appears is listed."""
    log = sweep / "trades-seed1" / LOG
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(lines[:3]) + lines[3][:50])
    assert get(server, "/runs.json")[0]["epoch"] == 3
    assert len(get(server, "/run.json?name=trades-seed1")["log"]["class_weights"]) == 3
    log.write_text("".join(lines[:4]))
    assert get(server, "/runs.json")[0]["epoch"] == 4
    assert len(get(server, "/run.json?name=trades-seed1")["log"]["class_weights"]) == 4
    made_up(sweep / "new", 10)
    assert [row["name"] for row in get(server, "/runs.json")] == ["new", "trades-seed1", "wat-seed1"]


def test_a_run_without_an_epoch_or_damaged_does_not_hide_the_others(server: ThreadingHTTPServer, sweep: Path) -> None:
    log = sweep / "trades-seed1" / LOG
    log.write_text("")
    assert get(server, "/runs.json")[0]["note"] == "no epoch has ended"
    assert get(server, "/run.json?name=trades-seed1") == {}
    log.unlink()
    assert get(server, "/runs.json")[0]["note"] == "no epoch has ended"
    log.write_text("nonsense\n")
    assert "line 1" in get(server, "/runs.json")[0]["note"]
    (sweep / "trades-seed1" / ABOUT).unlink()
    assert get(server, "/runs.json")[0]["note"] == "has not started"
    assert get(server, "/runs.json")[1]["epoch"] == EPOCHS


@pytest.mark.parametrize(
    "host", ["", "evil.example", "evil.example:{}", "127.0.0.1", "localhost:1", "127.0.0.1:{}.evil"]
)
def test_other_hosts_are_refused(server: ThreadingHTTPServer, host: str) -> None:
    """A name that somebody else points at 127.0.0.1 reads nothing."""
    for path in ("/", "/runs.json"):
        status, _, body = ask(server, path, host.format(server.server_port))
        assert (status, b"seed1" in body) == (403, False)
    assert ask(server, "/", f"localhost:{server.server_port}")[0] == 200


@pytest.mark.parametrize(
    "path",
    [
        "/../secret",
        "/..%2fsecret",
        "/secret",
        "/sweep.json",
        "/trades-seed1/log.jsonl",
        "/vendor/d3.min.js",
        "/run.json",
        "/run.json?name=../secret",
        "/run.json?name=..",
        "/run.json?name=notes",
        "/run.json?name=%2Fetc",
        "//etc/passwd",
        "http://evil.example/runs.json",
        "http://[/",
        "/%00",
    ],
)
def test_nothing_outside_is_read(server: ThreadingHTTPServer, path: str) -> None:
    status, _, body = ask(server, path)
    assert status in (400, 404)
    assert b"secret" not in body
    assert len(body) < 100


def test_it_only_reads(server: ThreadingHTTPServer, sweep: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in sweep.rglob("*")}
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert ask(server, "/runs.json", method=method)[0] == 501
    status, headers, body = ask(server, "/", method="HEAD")
    assert (status, body) == (200, b"")
    assert int(headers["Content-Length"]) > 100
    get(server, "/runs.json")
    assert before == {path: path.stat().st_mtime_ns for path in sweep.rglob("*")}


def test_pages_load_nothing_from_elsewhere(server: ThreadingHTTPServer) -> None:
    for path in PAGES:
        status, headers, _ = ask(server, path)
        assert status == 200
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert "Access-Control-Allow-Origin" not in headers
    page = ask(server, "/")[2].decode()
    assert set(re.findall(r"""(?:src|href)="(/[^"]*)""", page)) == set(PAGES) - {"/"}
    assert server.server_address[0] == "127.0.0.1"


def test_a_run_is_watched_with_its_base(sweep: Path) -> None:
    made_up(sweep / "wat-seed1" / "base", 43)
    assert list(Watch(sweep / "wat-seed1").folders()) == ["wat-seed1", "wat-seed1/base"]


def test_what_cannot_be_watched(sweep: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no folder"):
        make_server(tmp_path / "nowhere")
    with pytest.raises(UserError, match="holds no run"):
        make_server(sweep / "notes")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(UserError, match="leave --port out"):
            make_server(sweep, taken.getsockname()[1])


def test_ctrl_c_ends_it_with_one_line(
    sweep: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(server: ThreadingHTTPServer) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ThreadingHTTPServer, "serve_forever", interrupted)
    app(["watch", str(sweep)], standalone_mode=False)
    first, last = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"Watching .* at http://127\.0\.0\.1:[1-9]\d*/ \(Ctrl-C ends it\)", first)
    assert last == "Stopped watching; the runs go on."
