"""Dashboards as data: rows of panels, and the PromQL that they share. Knows nothing of Grafana."""

from dataclasses import dataclass, field

# A Prometheus without these labels has them as empty ones, which ".*" matches.
OF_RELEASE = 'namespace=~"$namespace",release=~"$release"'
OF_MODEL = f'{OF_RELEASE},model_name=~"$model"'
OF_WORKER = f'{OF_MODEL},instance=~"$instance"'


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


def of_release(labels: str) -> str:
    """The labels of a selector, and those of the chosen releases."""
    return f"{OF_RELEASE},{labels}"


def since_start(metric: str, *by: str, labels: str = OF_RELEASE) -> str:
    """A count of rare events: `rate` misses the first event of a series."""
    return _summed(f"{metric}{{{labels}}}", by)


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
