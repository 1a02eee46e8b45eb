"""Why the Hub gives no answer: the environment's variables before a call, the library's errors after it."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn
from urllib.parse import unquote, urlsplit

from dflash_convert.errors import HubError, chain
from dflash_convert.text import one_line, shorten

TIMEOUTS = ("HF_HUB_DOWNLOAD_TIMEOUT", "HF_HUB_ETAG_TIMEOUT")
PROXIES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY")
CERTIFICATES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
CERTIFICATE_TIP = (
    "A proxy or virus scanner that looks into encrypted traffic signs with its own certificate: SSL_CERT_FILE names a "
    "file that holds it."
)
PAGE_TIP = (
    "A network's login page or a proxy answered in the Hub's place: open the Hub's page in a browser, then try again."
)
SHORTER_TIP = (
    "The file was replaced meanwhile, or a mirror or an unfinished download (*.incomplete in the Hub's cache) does not "
    "fit it: run the command again; if that changes nothing, unset HF_ENDPOINT and delete what is unfinished."
)
LISTING_TIP = "If HF_ENDPOINT names a mirror, unset it; or try later."


def check_variables() -> None:
    """HubError for a variable of the environment that the libraries would stumble over, each by its name."""
    _check_endpoint()
    for name in TIMEOUTS:
        value = os.environ.get(name, "")
        if value and not (value.isascii() and value.isdigit() and int(value) > 0):
            raise HubError(
                f"{name} is {value!r}, expected a whole number of seconds", tip=f"Set {name}=30, or unset it."
            )
    for name, value in _proxies():
        _check_proxy(name, value)
    for name in CERTIFICATES:
        value = os.environ.get(name, "")
        if value and not Path(value).exists():
            raise HubError(f"{name} is {value!r}, where no file is", tip=f"Correct {name}, or unset it.")


def _check_endpoint() -> None:
    value = os.environ.get("HF_ENDPOINT", "")
    parts = urlsplit(value)
    if value and (parts.scheme not in ("http", "https") or not parts.netloc):
        raise HubError(
            f"HF_ENDPOINT is {value!r}, expected a URL", tip="For example HF_ENDPOINT=https://huggingface.co"
        )


def _proxies() -> Iterator[tuple[str, str]]:
    for name in PROXIES:
        for each in (name, name.lower()):
            value = os.environ.get(each, "")
            if value:
                yield each, value


def _check_proxy(name: str, value: str) -> None:
    """``value`` may hold a password: it is not shown."""
    scheme = value.partition("://")[0].lower() if "://" in value else "http"  # as the libraries read it
    if scheme not in ("http", "https", "socks5", "socks5h"):
        raise HubError(
            f"{name} is no URL of a proxy", tip=f"For example {name}=http://proxy.example:8080, or unset it."
        )
    if scheme.startswith("socks") and importlib.util.find_spec("socksio") is None:
        raise HubError(
            f"{name} names a SOCKS proxy, for which the package socksio is missing",
            tip=f"pip install socksio, or unset {name}.",
        )


def no_connection(error: BaseException) -> tuple[str, str | None] | None:
    """Why there was no answer at all, and what to do: a certificate, or no route, name or time; else None."""
    from huggingface_hub.errors import OfflineModeIsEnabled

    if any("CERTIFICATE_VERIFY_FAILED" in str(each) for each in chain(error)):
        return "the Hub's certificate was not accepted", CERTIFICATE_TIP
    known = (OfflineModeIsEnabled, ConnectionError, TimeoutError)
    names = {base.__name__ for base in type(error).__mro__}
    answered = getattr(error, "response", None) is not None
    if isinstance(error, known) or (not answered and names & {"TransportError", "RequestException", "ConnectError"}):
        return "the Hub cannot be reached", None
    return None


def explain(error: Exception, repository: str, revision: str | None, name: str = "") -> NoReturn:
    """HubError of one sentence per kind of refusal, about the file ``name`` where one was asked for;
    the library's own text may quote headers and is only the cause."""
    message, tip = _refusal(error, revision, name or _asked(error) or "a file")
    raise HubError(f"{repository}{message}", tip=tip) from error


def _asked(error: Exception) -> str:
    """The file of the repository whose address gave this answer; empty where it was something else's."""
    address = str(getattr(getattr(error, "response", None), "url", None) or "")
    rest = unquote(urlsplit(address).path).partition("/resolve/")[2]
    return one_line(rest.partition("/")[2])


def _refusal(error: Exception, revision: str | None, name: str) -> tuple[str, str | None]:
    from huggingface_hub import errors

    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, errors.GatedRepoError):
        if status == 401:
            tip = "Accept its terms on its page, then log in with `hf auth login` or set HF_TOKEN."
            return " is gated: the Hub asks who you are", tip
        tip = "Ask for access on its page; if you have it, check that HF_TOKEN belongs to that account."
        return " is gated and your account has no access", tip
    if isinstance(error, errors.RevisionNotFoundError):
        return f" has no revision {revision or 'main'}", "Give a branch, a tag or a full commit after the @."
    if isinstance(error, errors.RepositoryNotFoundError):
        tip = "Check the spelling; a private repository needs HF_TOKEN or `hf auth login`."
        return " was not found on the Hub", tip
    if status == 401:
        return ": the Hub refused the token", "Set a valid HF_TOKEN, or unset it."
    if _is_page(error):
        return ": the answer is no answer of the Hub", PAGE_TIP
    if status == 403:
        tip = "Open its page in a browser: a token without the right to read it, or a network's filter, is refused so."
        return f": the Hub refuses {name} (status 403)", tip
    if status == 404:
        return f": the Hub has no {name} (status 404)", "The repository may have changed meanwhile: try again."
    if status == 416:
        return f": {name} ends before the bytes that its listing states (status 416)", SHORTER_TIP
    if status is not None:
        return f": the Hub answered with status {status}", later(status)
    if isinstance(error, OSError) and error.errno is not None:
        return f": the download cannot be stored ({error.strerror})", None
    if isinstance(error, OSError) and "Consistency check failed" in str(error):
        return f": what came for {name} has not the length that the Hub states for it", PAGE_TIP
    if isinstance(error, KeyError):  # the library takes the listing's fields for granted
        return f": the Hub's listing of its files has no field {shorten(str(error))}", LISTING_TIP
    return f": the download failed ({type(error).__name__})", "Try again; -v shows the cause."


def later(status: int) -> str:
    """What to do about an answer with ``status`` that means nothing in particular."""
    if status == 429:
        return "There were too many requests: wait some minutes, then run the command again; a token allows more."
    if status >= 500 or status == 408:
        return "Try again later."
    return "The same request gets the same answer: if HF_ENDPOINT names a mirror, unset it; -v shows the cause."


def _is_page(error: Exception) -> bool:
    """Text where JSON belongs, or a file without the headers that the Hub sends with each."""
    names = {base.__name__ for each in chain(error) for base in type(each).__mro__}
    return bool(names & {"JSONDecodeError", "FileMetadataError"})
