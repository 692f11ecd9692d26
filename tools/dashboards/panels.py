"""Dashboards as data: rows of panels, and the PromQL that they share. Knows nothing of Grafana."""

from dataclasses import dataclass, field

OF_MODEL = 'model_name=~"$model"'


@dataclass(frozen=True)
class Panel:
    """One panel. `queries`: PromQL -> legend. `unit` is one of Grafana's.

    `limit`, an alert's, is drawn where the axis reaches it. `colours`: a value -> the colour from
    there on. It has 11 attributes because Grafana's panels have these options.
    """

    title: str
    what: str
    queries: dict[str, str]
    unit: str = "short"
    kind: str = "timeseries"
    is_stacked: bool = False
    most: float | None = None
    limit: float | None = None
    decimals: int | None = None
    colours: dict[float, str] = field(default_factory=dict)
    # The text of a figure without series.
    nothing: str = ""


@dataclass(frozen=True)
class Dashboard:
    """`rows`: heading -> panels, which share the width."""

    uid: str
    title: str
    what: str
    rows: dict[str, list[Panel]]


def rate(metric: str, *by: str, labels: str = OF_MODEL) -> str:
    """Events per second."""
    return _summed(f"rate({metric}{{{labels}}}[$__rate_interval])", by)


def since_start(metric: str, *by: str, labels: str = "") -> str:
    """A count of rare events: `rate` misses the first event of a series."""
    return _summed(f"{metric}{{{labels}}}" if labels else metric, by)


def mean(histogram: str, *by: str, labels: str = OF_MODEL) -> str:
    """The mean of the observations."""
    total, count = (rate(f"{histogram}_{part}", *by, labels=labels) for part in ("sum", "count"))
    return f"{total} / {count}"


def quantile(share: float, histogram: str, *by: str, labels: str = OF_MODEL) -> str:
    """A quantile of the observations."""
    return f"histogram_quantile({share}, {rate(f'{histogram}_bucket', 'le', *by, labels=labels)})"


def quantiles(histogram: str, labels: str = OF_MODEL) -> dict[str, str]:
    """Median, 95th and 99th percentile."""
    return {
        quantile(share, histogram, labels=labels): f"p{share * 100:.0f}"
        for share in (0.5, 0.95, 0.99)
    }


def _summed(expression: str, by: tuple[str, ...]) -> str:
    return f"sum by ({', '.join(by)}) ({expression})" if by else f"sum({expression})"
