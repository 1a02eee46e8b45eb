"""Downloads that cannot work: the variable or the cause is named, and -v shows what the library said."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_hub import FakeHub
from loopback import Loopback

# untrusted.pem: a certificate of 127.0.0.1 and its key, made for these tests and known to nobody
HERE = Path(__file__).resolve().parent
TOKEN = "hf_thisIsASecretOfTheTest"


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with FakeHub() as fake:
        yield fake


def convert(hub: FakeHub, home: Path, *more: str, **env: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "dflash_convert", "owner/drafter", "--target-model-dir", "owner/target", *more]
    variables = {key: value for key, value in hub.environment(home, **env).items() if value}
    return subprocess.run(line, env=variables, capture_output=True, text=True, timeout=60, check=False)


VARIABLES: list[tuple[dict[str, str], str, str]] = [
    ({"HF_ENDPOINT": "hf-mirror.com"}, "HF_ENDPOINT is 'hf-mirror.com', expected a URL", "HF_ENDPOINT=https://"),
    ({"HF_ENDPOINT": "htps://hf-mirror.com"}, "HF_ENDPOINT is 'htps://hf-mirror.com', expected a URL", "https://"),
    ({"HF_HUB_DOWNLOAD_TIMEOUT": "30s"}, "HF_HUB_DOWNLOAD_TIMEOUT is '30s', expected a whole number", "=30"),
    ({"HF_HUB_ETAG_TIMEOUT": "ten"}, "HF_HUB_ETAG_TIMEOUT is 'ten', expected a whole number", "=30"),
    ({"HF_HUB_ETAG_TIMEOUT": "1.5"}, "HF_HUB_ETAG_TIMEOUT is '1.5', expected a whole number", "=30"),
    ({"ALL_PROXY": "socks5://u:secret@h:1"}, "ALL_PROXY names a SOCKS proxy, for which the package", "pip install"),
    ({"https_proxy": "socks5h://127.0.0.1:1"}, "https_proxy names a SOCKS proxy, for which the package", "pip install"),
    ({"HTTPS_PROXY": "htp://u:secret@h:8080"}, "HTTPS_PROXY is no URL of a proxy", "http://proxy.example:8080"),
    ({"SSL_CERT_FILE": "/no/such.pem"}, "SSL_CERT_FILE is '/no/such.pem', where no file is", "unset"),
    ({"REQUESTS_CA_BUNDLE": "/no/such.pem"}, "REQUESTS_CA_BUNDLE is '/no/such.pem', where no file is", "unset"),
]


@pytest.mark.parametrize(("variables", "told", "tip"), VARIABLES)
def test_a_variable_that_cannot_work_is_named(
    hub: FakeHub, tmp_path: Path, variables: dict[str, str], told: str, tip: str
) -> None:
    done = convert(hub, tmp_path, **variables)
    error, cure = done.stderr.splitlines()
    assert done.returncode == 8
    assert error.startswith(f"ERROR {told}")
    assert tip in cure
    assert "secret" not in done.stderr
    assert hub.log == []


def test_a_proxy_without_a_scheme_is_the_librarys_affair(monkeypatch: pytest.MonkeyPatch) -> None:
    from dflash_convert.hub_trouble import check_variables

    for name, value in (
        ("HTTPS_PROXY", "127.0.0.1:9"),
        ("HF_ENDPOINT", "http://127.0.0.1:9"),
        ("HF_HUB_ETAG_TIMEOUT", "7"),
    ):
        monkeypatch.setenv(name, value)
    check_variables()


class _Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b"<html><body>Please log in</body></html>"
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def login_page() -> Iterator[Loopback]:
    with Loopback(_Page) as server:
        yield server


def test_a_login_page_instead_of_an_answer(hub: FakeHub, tmp_path: Path, login_page: Loopback) -> None:
    endpoint = f"http://127.0.0.1:{login_page.server_port}"
    plain = convert(hub, tmp_path, HF_ENDPOINT=endpoint)
    assert plain.returncode == 8
    assert "ERROR owner/drafter: the answer is no answer of the Hub" in plain.stderr
    assert "a browser" in plain.stderr.lower()
    assert "CAUSE" not in plain.stderr
    told = convert(hub, tmp_path, "-v", HF_ENDPOINT=endpoint)
    assert "CAUSE json.decoder.JSONDecodeError" in told.stderr
    assert "Traceback" not in told.stderr


def test_a_certificate_of_somebody_else(hub: FakeHub, tmp_path: Path, login_page: Loopback) -> None:
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(HERE / "untrusted.pem")
    login_page.socket = context.wrap_socket(login_page.socket, server_side=True)
    endpoint = f"https://127.0.0.1:{login_page.server_port}"
    done = convert(hub, tmp_path, "-v", HF_ENDPOINT=endpoint, HF_TOKEN=TOKEN)
    assert done.returncode == 8
    assert "ERROR owner/drafter: the Hub's certificate was not accepted, and the cache does not hold" in done.stderr
    assert "SSL_CERT_FILE" in done.stderr
    assert "CERTIFICATE_VERIFY_FAILED" in done.stderr.partition("CAUSE")[2]
    assert TOKEN not in done.stderr


def test_the_cause_of_no_connection_is_shown(hub: FakeHub, tmp_path: Path) -> None:
    quiet = convert(hub, tmp_path, HF_ENDPOINT="http://127.0.0.1:9")
    told = convert(hub, tmp_path, "-v", HF_ENDPOINT="http://127.0.0.1:9")
    assert "CAUSE" not in quiet.stderr
    assert "Connection refused" in told.stderr.partition("CAUSE")[2]


def test_causes_hold_no_secrets(capsys: pytest.CaptureFixture[str]) -> None:
    from dflash_convert.cli.terminal import causes

    error = ValueError("outer")
    error.__cause__ = OSError(f"http://user:pass@proxy/ refused 'Authorization: Bearer {TOKEN}'\n\x1b[2J")
    causes(error)
    text = capsys.readouterr().err
    assert text.startswith("CAUSE builtins.OSError: http://")
    assert "pass" not in text
    assert TOKEN not in text
    assert "\x1b" not in text


@pytest.mark.parametrize(
    ("status", "cure"),
    [(429, "wait some minutes"), (500, "Try again later."), (503, "Try again later."), (451, "gets the same answer")],
)
def test_trying_again_is_proposed_where_it_can_help(status: int, cure: str) -> None:
    from dflash_convert.errors import HubError
    from dflash_convert.hub_trouble import explain
    from dflash_convert.release.publish import _explain

    for told in (lambda error: explain(error, "a/b", None), lambda error: _explain(error, "a/b", ())):
        error = OSError()
        error.response = SimpleNamespace(status_code=status, url="https://hub/a/b")  # type: ignore[attr-defined]
        with pytest.raises(HubError, match=f"a/b: the Hub answered with status {status}") as caught:
            told(error)
        assert cure in str(caught.value.tip)


def test_a_file_is_named_by_the_address_that_was_refused() -> None:
    from dflash_convert.errors import HubError
    from dflash_convert.hub_trouble import explain

    address = "https://hub/a/b/resolve/main/sub/x%0Ay.gguf?download=true"
    error = OSError()
    error.response = SimpleNamespace(status_code=404, url=address)  # type: ignore[attr-defined]
    with pytest.raises(HubError, match=r"a/b: the Hub has no sub/x\\ny.gguf \(status 404\)"):
        explain(error, "a/b", None)
