# SPDX-License-Identifier: Apache-2.0
"""One SGLang server over HTTP: a pool of connections, keys, and the meaning of answers.

A failed request that can be repeated raises [`ServerUnavailableError`], any other [`RolloutServerError`]. Keys are
sent in a header and never appear in a message.
"""

import time
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx
from transformers.utils import logging

from ..errors import RolloutServerError, ServerGoneError, ServerUnavailableError

logger = logging.get_logger(__name__)
T = TypeVar("T")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
_TOO_MANY_REQUESTS = 429
_HEALTH_TIMEOUT = 20.0  # seconds; a healthy server draws one token for its answer


class Patience:
    """How long a server may fail: growing pauses, then an error.

    Args:
        url (`str`): Of the server.
        seconds (`float`): Limit, counted from the first failure.
        advice (`str`): What the user can do, if that is known.
    """

    def __init__(self, url: str, seconds: float, advice: str = ""):
        self.url, self.seconds, self.advice = url, seconds, advice
        self.renew()

    def renew(self) -> None:
        """Forgets earlier failures, because the server did something useful."""
        self._since: float | None = None
        self._pause = _FIRST_PAUSE

    def wait(self, reason: object) -> None:
        """Pauses after a failure.

        Raises:
            ServerGoneError: If the server has failed for too long.
        """
        now = time.monotonic()
        if self._since is None:
            self._since = now
            logger.warning(
                "The SGLang server %s fails (%s). Waiting for it for up to %g s. %s",
                self.url,
                reason,
                self.seconds,
                self.advice,
            )
        left = self._since + self.seconds - now
        if left <= 0:
            raise ServerGoneError(
                f"The SGLang server {self.url} failed for {self.seconds:g} s (server_timeout). The last error: "
                f"{reason}." + (f" {self.advice}" if self.advice else "")
            )
        time.sleep(min(self._pause, left))
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)

    def attempt(self, work: Callable[[], T]) -> T:
        """Repeats work, which must be safe to repeat, until it succeeds. Earlier failures count."""
        while True:
            try:
                return work()
            except ServerUnavailableError as error:
                self.wait(error)


class SGLangServer:
    """Requests to one server; safe to share between threads.

    Args:
        url (`str`): Such as `http://localhost:30000`.
        timeout (`float`): Seconds without an answer after which a request fails.
        api_key (`str`, *optional*): The server's `--api-key`.
        admin_key (`str`, *optional*): Its `--admin-api-key`. If set, only this key can change weights.
    """

    def __init__(self, url: str, timeout: float, api_key: str | None = None, admin_key: str | None = None):
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.password:
            shown = f"{parts.scheme}://{parts.hostname}" if parts.hostname else parts.scheme or url  # without keys
            raise ValueError(
                f"The URL of an SGLang server must look like http://localhost:30000, got {shown!r}. It must not "
                "contain keys: set SGLANG_API_KEY and SGLANG_ADMIN_API_KEY."
            )
        self.url, self.timeout = url.rstrip("/"), timeout
        self._api_key, self._admin_key = api_key, admin_key
        self._http = httpx.Client(
            timeout=httpx.Timeout(timeout, connect=min(timeout, 10.0), pool=None),
            # Servers close idle connections after 5 seconds. A connection that is being closed must not be used again.
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=2.0),
            trust_env=False,  # the environment's proxy is for the internet, not for a rollout server
        )

    def __repr__(self) -> str:
        return f"SGLangServer({self.url!r})"

    def get(self, path: str) -> dict:
        return self._ask("GET", path, self._api_key)

    def generate(self, payload: dict) -> Any:
        """Returns the answer to a request to `/generate`."""
        return self._ask("POST", "/generate", self._api_key, payload)

    def control(self, path: str, payload: dict) -> dict:
        """Posts to an endpoint that changes the server.

        Raises:
            RolloutServerError: If the server reports a failure.
        """
        answer = self._ask("POST", path, self._admin_key or self._api_key, payload)
        if not isinstance(answer, dict) or answer.get("success") is not True:
            raise RolloutServerError(f"The SGLang server {self.url} did not do {path}: {_message(answer)}")
        return answer

    def command(self, path: str, payload: dict) -> None:
        """Posts to an endpoint that changes the server and says nothing but that it did."""
        self._ask("POST", path, self._admin_key or self._api_key, payload)

    def check_idle(self) -> None:
        """Empties the server's cache of prompts, which it does only while it runs no request.

        Raises:
            ServerUnavailableError: While requests are running.
        """
        response = self._send("POST", "/flush_cache", self._admin_key or self._api_key, {})
        if response.status_code == httpx.codes.BAD_REQUEST:
            raise ServerUnavailableError(f"{self.url} is still running requests")
        self._checked(response, "/flush_cache")

    def check_health(self) -> None:
        """Raises [`ServerUnavailableError`] unless the server is up."""
        response = self._send("GET", "/health", self._api_key, None)
        if response.status_code != httpx.codes.OK:
            raise ServerUnavailableError(f"{self.url}/health answered {response.status_code}")

    def weight_version(self) -> str:
        return str(self.get("/model_info").get("weight_version"))

    def close(self) -> None:
        self._http.close()

    def _ask(self, method: str, path: str, key: str | None, payload: dict | None = None) -> Any:
        response = self._checked(self._send(method, path, key, payload), path)
        try:
            return response.json()
        except ValueError as error:
            raise ServerUnavailableError(
                f"{self.url}{path} returned invalid JSON, perhaps cut off: {error}"
            ) from error

    def _checked(self, response: httpx.Response, path: str) -> httpx.Response:
        """Returns a response with status 200, and raises for any other."""
        status = response.status_code
        if status == httpx.codes.OK:
            return response
        said = f"{self.url}{path} answered {status}: {_message(_json_or_text(response))}"
        if status >= httpx.codes.INTERNAL_SERVER_ERROR or status == _TOO_MANY_REQUESTS:
            raise ServerUnavailableError(said)
        if status in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            said += ". Set SGLANG_API_KEY to the server's --api-key, and SGLANG_ADMIN_API_KEY if it has one."
        raise RolloutServerError(said)

    def _send(self, method: str, path: str, key: str | None, payload: dict | None) -> httpx.Response:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        try:
            return self._http.request(method, self.url + path, headers=headers, json=payload)
        except httpx.ReadTimeout as error:
            raise ServerGoneError(
                f"The SGLang server {self.url} did not answer {path} within {self.timeout:g} s (server_timeout). "
                f"{self._why_silent()}"
            ) from error
        except httpx.TransportError as error:
            raise ServerUnavailableError(f"{self.url}{path}: {type(error).__name__}: {error}") from error

    def _why_silent(self) -> str:
        """Whether a server that does not answer is slow, or has lost its scheduler, which its HTTP side outlives."""
        try:
            limit = min(self.timeout, _HEALTH_TIMEOUT)
            status = self._http.request("GET", f"{self.url}/health", timeout=limit).status_code
        except httpx.TransportError as error:
            status = type(error).__name__
        if status in (httpx.codes.OK, httpx.codes.UNAUTHORIZED):
            return "Raise server_timeout if it is only slow."
        return (
            f"It is not healthy either (/health: {status}), so its scheduler has probably died: see the server's log, "
            "and restart it."
        )


def _json_or_text(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        return response.text[:500]


def _message(answer: Any) -> str:
    """The message in an answer, in any of the formats of a server."""
    if isinstance(answer, dict):
        error = answer.get("error", answer.get("message", answer))
        return str(error.get("message", error) if isinstance(error, dict) else error)
    return str(answer)
