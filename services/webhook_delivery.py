"""Sends webhooks: signed as Standard Webhooks says, at least once, each receiver at its own pace."""

import asyncio
import json
import random
import ssl
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import httpx
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError
from standardwebhooks import Webhook

from core.errors import SandmillError
from core.failpoints import failpoint
from core.logging import get_logger
from core.outbound import AddressGuard, parse_url
from core.sealing import SecretBox
from repositories.webhook_outbox import DueDelivery, WebhookOutboxRepository
from services.webhook_retries import Answer, Decision, Verb, decide
from services.webhook_secrets import seal_purpose

__all__ = ["WebhookPolicy", "WebhookSender", "make_body"]

log = get_logger(__name__)

_RESOLVER_SECONDS = 60.0
"""What looking a name up takes at the very most, by the system's resolver."""
_PATHS = {"trial": "/v1/trials/{trial_id}", "batch": "/v1/batches/{batch_id}"}


@dataclass(frozen=True, slots=True)
class WebhookPolicy:
    """See the settings of the same names. public_url: without a slash at the end; empty: links are paths alone."""

    parallel: int = 16
    timeout_seconds: float = 15.0
    public_url: str = ""

    @property
    def per_target(self) -> int:
        """Most messages under way to one receiver."""
        return max(1, self.parallel // 4)

    @property
    def per_tenant(self) -> int:
        """Most messages under way of one tenant, who may have many slow receivers."""
        return max(1, self.parallel // 2)

    @property
    def hold_seconds(self) -> float:
        """After so long a claimed message counts as not sent."""
        return self.timeout_seconds + _RESOLVER_SECONDS + 30.0


class WebhookSender:
    """Sends what is due with a bounded number of threads. One object per process; thread-safe."""

    def __init__(
        self,
        engine: Engine,
        box: SecretBox,
        guard: AddressGuard,
        policy: WebhookPolicy,
        *,
        on_done: Callable[[], None] = lambda: None,
    ) -> None:
        """engine: its pool bounds how many results are written at a time. on_done: called after each message."""
        self._engine = engine
        self._box = box
        self._guard = guard
        self._policy = policy
        self._on_done = on_done
        self._rng = random.SystemRandom()
        self._tls = ssl.create_default_context()
        self._lock = threading.Lock()
        self._in_flight: dict[tuple[Any, int], DueDelivery] = {}
        self._pool = ThreadPoolExecutor(policy.parallel, thread_name_prefix="webhook")

    def tick(self) -> int:
        """Start sending what is due and fits; gives how many messages that were. Waits for none of them."""
        with self._lock:
            under_way = list(self._in_flight.values())
        free = self._policy.parallel - len(under_way)
        if free <= 0:
            return 0
        with self._engine.begin() as connection:
            due = WebhookOutboxRepository(connection).claim(
                in_flight=under_way,
                limit=free,
                per_target=self._policy.per_target,
                per_tenant=self._policy.per_tenant,
                hold_seconds=self._policy.hold_seconds,
            )
        for delivery in due:
            with self._lock:
                self._in_flight[delivery.id, delivery.tries] = delivery
            self._pool.submit(self._handle, delivery)
        return len(due)

    def close(self) -> None:
        """Take nothing new and wait for what is under way, which ends within the time limits."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _handle(self, delivery: DueDelivery) -> None:
        try:
            failpoint("webhook.before_post")
            answer = self._send(delivery)
            failpoint("webhook.after_post")
            decision = decide(answer, delivery.tries, now=datetime.now(UTC), rng=self._rng)
            self._record(delivery, answer, decision)
        except SQLAlchemyError as error:
            # It is due again after its hold, and then sent once more: at least once.
            log.warning(
                "webhook_result_not_stored", delivery_id=str(delivery.id), error=str(error).splitlines()[0]
            )
        except Exception:
            log.exception("webhook_failed", delivery_id=str(delivery.id))
        finally:
            with self._lock:
                del self._in_flight[delivery.id, delivery.tries]
            self._on_done()

    def _send(self, delivery: DueDelivery) -> Answer:
        try:
            url = parse_url(delivery.url, field="url")
            address = self._guard.resolve(url)
            body = make_body(delivery.payload, public_url=self._policy.public_url)
            headers = {
                **self._sign(delivery, body),
                "Host": url.authority,
                "Content-Type": "application/json",
                "User-Agent": "Sandmill-Webhooks",
            }
        except SandmillError as error:
            return Answer(None, error=error.message)
        return asyncio.run(self._post(url.at(address), url.host, headers, body))

    def _sign(self, delivery: DueDelivery, body: str) -> dict[str, str]:
        """Give the three headers; the signature covers id, time and the exact body."""
        sealed = [secret for secret in (delivery.secret, delivery.previous_secret) if secret is not None]
        purpose = seal_purpose(delivery.endpoint_id)
        secrets = [self._box.unseal(bytes(secret), purpose=purpose).decode() for secret in sealed]
        now = datetime.now(UTC)
        return {
            "webhook-id": str(delivery.id),
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": " ".join(Webhook(s).sign(str(delivery.id), now, body) for s in secrets),
        }

    async def _post(self, url: str, host: str, headers: dict[str, str], body: str) -> Answer:
        """Send to a checked address. The name counts for TLS alone; no redirect is followed, no answer read."""
        try:
            async with (
                # Over all: a receiver that sends a byte now and then would keep to any limit on a single read.
                asyncio.timeout(self._policy.timeout_seconds),
                httpx.AsyncClient(
                    verify=self._tls,
                    trust_env=False,
                    follow_redirects=False,
                    timeout=self._policy.timeout_seconds,
                ) as client,
                client.stream(
                    "POST", url, content=body.encode(), headers=headers, extensions={"sni_hostname": host}
                ) as response,
            ):
                return Answer(response.status_code, retry_after=response.headers.get("retry-after"))
        except TimeoutError:
            return Answer(None, error=f"no answer within {self._policy.timeout_seconds:g} s")
        except (httpx.HTTPError, ssl.SSLError, OSError) as error:
            return Answer(None, error=_describe(error))

    def _record(self, delivery: DueDelivery, answer: Answer, decision: Decision) -> None:
        error = decision.error or ""
        with self._engine.begin() as connection:
            repository = WebhookOutboxRepository(connection)
            match decision.verb:
                case Verb.DONE:
                    repository.mark_delivered(delivery, status=answer.status or 0)
                case Verb.RETRY:
                    repository.retry(delivery, seconds=decision.seconds, status=answer.status, error=error)
                case Verb.GIVE_UP:
                    repository.give_up(delivery, status=answer.status, error=error)
                case Verb.DISABLE:
                    repository.give_up(delivery, status=answer.status, error=error)
                    repository.disable(delivery, reason=error)
        if decision.verb in {Verb.GIVE_UP, Verb.DISABLE}:
            log.warning("webhook_dead", delivery_id=str(delivery.id), tries=delivery.tries, error=error)


def make_body(payload: Any, *, public_url: str) -> str:
    """Write a message, with links to what it tells of: the same text at every try."""
    data = payload["data"]
    links = {
        name: public_url.rstrip("/") + path.format_map(data)
        for name, path in _PATHS.items()
        if f"{name}_id" in data
    }
    return json.dumps({**payload, "data": {**data, "links": links}}, sort_keys=True, separators=(",", ":"))


def _describe(error: Exception) -> str:
    """Say what went wrong, without what the receiver has said."""
    cause = error.__cause__ or error.__context__ or error
    text = "certificate not trusted" if "certificate" in f"{error} {cause}".lower() else type(error).__name__
    return f"cannot be reached: {text}"
