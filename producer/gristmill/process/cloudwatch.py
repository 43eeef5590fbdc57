"""Tells CloudWatch of the backlog and the workers, which Auto Scaling on AWS decides by.

The numbers are those of the gauges that Prometheus reads. Every control process publishes, and they
say the same, so alarms take the maximum.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from gristmill.aws import AWS_ERRORS, aws_session, client_config, explain, parse_aws_url
from gristmill.errors import UsageError
from gristmill.process.loop_thread import LoopThread
from gristmill.telemetry.tally import Series

log = logging.getLogger(__name__)

#: Alarms look at whole minutes.
PUBLISH_EVERY_S = 30.0
#: Models in one request: three numbers each, and CloudWatch takes a thousand.
_MAX_MODELS = 300
#: States of workers that count: those that take work, or will soon.
_COMING = ("loading", "ready")


@dataclass(frozen=True, slots=True)
class ModelLoad:
    """What is left to do for a model, sent to workers or not, and its workers.

    `backlog_s` is how long the slowest of its Lanes takes.
    """

    backlog_tokens: float = 0.0
    backlog_s: float = 0.0
    num_workers: float = 0.0


class MetricsClient(Protocol):
    """As boto3 makes it for CloudWatch."""

    def put_metric_data(self, *, Namespace: str, MetricData: list[dict[str, Any]]) -> Any: ...


@contextmanager
def cloudwatch_told(
    namespace: str,
    look: Callable[[], Iterable[Series]],
    *,
    stop: threading.Event,
) -> Iterator[None]:
    """While entered, a thread publishes what `look` reads, until `stop` is set."""
    loop = CloudWatchLoop(cloudwatch_client(), namespace, look)
    thread = LoopThread(loop.run, stop, name="cloudwatch")
    yield
    stop.set()
    thread.join()


def cloudwatch_client(url: str = "cloudwatch://") -> MetricsClient:
    """`cloudwatch://?endpoint=…&region=…`. Raises UsageError where no region is known."""
    where = parse_aws_url(url, choices={}, attempts=3, timeout_s=10.0)
    session = aws_session()
    make: Any = session.client  # its types know the services that we have stubs of
    try:
        client: MetricsClient = make(
            "cloudwatch", endpoint_url=where.endpoint, config=client_config(where, session)
        )
    except (*AWS_ERRORS, ValueError) as error:
        raise UsageError(f"CloudWatch: {error} Set AWS_DEFAULT_REGION.") from error
    return client


def loads_of(gauges: Iterable[Series], models: Iterable[str]) -> dict[str, ModelLoad] | None:
    """By model; None while the Ledger is away, when the gauges have no values.

    `models` are told of also when there is nothing to do: an alarm that waits for none has to
    see that.
    """
    tokens: dict[str, float] = dict.fromkeys(models, 0.0)
    seconds: dict[str, float] = {}
    workers: dict[str, float] = {}
    is_read = False
    for series in gauges:
        is_read |= series.metric.name == "gristmill_batches" and bool(series.values)
        for labels, value in series.values.items():
            of = dict(zip(series.metric.labels, labels, strict=True))
            if "model" not in of or not isinstance(value, int | float):
                continue
            model = of["model"]
            match series.metric.name:
                case "gristmill_backlog_tokens":
                    tokens[model] = tokens.get(model, 0.0) + value
                case "gristmill_backlog_model_seconds":
                    seconds[model] = value
                case "gristmill_workers" if of["state"] in _COMING:
                    workers[model] = workers.get(model, 0.0) + value
    if not is_read:
        return None
    return {
        model: ModelLoad(tokens.get(model, 0.0), seconds.get(model, 0.0), workers.get(model, 0.0))
        for model in sorted(tokens.keys() | seconds.keys() | workers.keys())
    }


class CloudWatchLoop:
    """One thread calls `run`. What cannot be published is said once, and nothing else waits."""

    def __init__(
        self,
        client: MetricsClient,
        namespace: str,
        look: Callable[[], Iterable[Series]],
        *,
        every_s: float = PUBLISH_EVERY_S,
    ) -> None:
        """`look` reads the gauges."""
        self._client = client
        self._namespace = namespace
        self._look = look
        #: All that were ever told of: the last word on each shall be that there is nothing left.
        self._models: set[str] = set()
        self._every_s = every_s
        #: Why it cannot publish just now, for people.
        self.trouble = ""

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            self.turn()
            stop.wait(self._every_s)

    def turn(self) -> None:
        """Publish once."""
        try:
            loads = loads_of(self._look(), self._models)
            if loads is None:
                # Nothing is said then: to say that there is no work would end all workers.
                self._tell("The ledger is away, so the backlog is not known.")
                return
            self._publish(loads)
        except AWS_ERRORS as error:
            found = explain(error, where="CloudWatch", doing=f"publishing to {self._namespace!r}")
            self._tell(found.message)
        except Exception:  # the control side goes on, whatever is wrong here
            log.exception("metrics not published")
        else:
            self.trouble = ""

    def _publish(self, loads: dict[str, ModelLoad]) -> None:
        self._models |= loads.keys()
        # A dimension is of ASCII and not empty; one that is not would spoil the whole request.
        told = [(name, load) for name, load in loads.items() if name.strip() and name.isascii()]
        for begin in range(0, len(told), _MAX_MODELS):
            numbers = [
                _number(model, name, value, unit)
                for model, load in told[begin : begin + _MAX_MODELS]
                for name, value, unit in (
                    ("BacklogTokens", load.backlog_tokens, "Count"),
                    ("BacklogSeconds", load.backlog_s, "Seconds"),
                    ("Workers", load.num_workers, "Count"),
                )
            ]
            self._client.put_metric_data(Namespace=self._namespace, MetricData=numbers)

    def _tell(self, trouble: str) -> None:
        if trouble != self.trouble:
            log.warning("metrics not published reason=%s", trouble)
        self.trouble = trouble


def _number(model: str, name: str, value: float, unit: str) -> dict[str, Any]:
    return {
        "MetricName": name,
        "Dimensions": [{"Name": "Model", "Value": model}],
        "Value": value,
        "Unit": unit,
    }
