"""A metrics page in Prometheus' text format as numbers: sums and quantiles over labels."""

import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping

from prometheus_client.parser import text_string_to_metric_families

_Labels = Mapping[str, str]
_NAME = re.compile("[{ ]")


class Samples:
    """The samples of one page, or of several pages added up."""

    def __init__(self) -> None:
        self._of_name: dict[str, list[tuple[_Labels, float]]] = defaultdict(list)

    @classmethod
    def of_page(cls, text: str, names: Collection[str] = ()) -> "Samples":
        """The samples of `text`, or those of them that have one of `names`: parsing is what a look
        at a page costs. Raises ValueError when it is not a metrics page."""
        samples = cls()
        if names:
            text = "".join(
                f"{line}\n" for line in text.splitlines() if _NAME.split(line, 1)[0] in names
            )
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                samples._of_name[sample.name].append((sample.labels, sample.value))
        return samples

    @classmethod
    def together(cls, pages: Iterable["Samples"]) -> "Samples":
        """All samples of several pages."""
        samples = cls()
        for page in pages:
            for name, rows in page._of_name.items():
                samples._of_name[name] += rows
        return samples

    def total(self, name: str, **labels: str) -> float:
        """Sum over all samples of `name` that have these labels; 0 when there is none."""
        return sum(value for _, value in self._having(name, labels))

    def by(self, name: str, label: str, **labels: str) -> dict[str, float]:
        """`total` for each value of a label."""
        totals: dict[str, float] = defaultdict(float)
        for own, value in self._having(name, labels):
            totals[own.get(label, "")] += value
        return dict(totals)

    def _having(self, name: str, labels: _Labels) -> Iterator[tuple[_Labels, float]]:
        for own, value in self._of_name.get(name, ()):
            if all(own.get(key) == wanted for key, wanted in labels.items()):
                yield own, value


def grown(before: Samples, after: Samples, name: str, **labels: str) -> float:
    """The growth of a counter; one that fell has started again from 0."""
    old, new = before.total(name, **labels), after.total(name, **labels)
    return new - old if new >= old else new


def quantile(before: Samples, after: Samples, histogram: str, share: float) -> float | None:
    """A quantile of the observations between two pages; None when there were none.

    Linear inside a bucket, as PromQL's histogram_quantile; the last finite bound for a quantile
    beyond it.
    """
    name = f"{histogram}_bucket"
    old, new = before.by(name, "le"), after.by(name, "le")
    bounds = sorted((float(bound), bound) for bound in new)
    counts = [(limit, max(0.0, new[bound] - old.get(bound, 0.0))) for limit, bound in bounds]
    if not counts or counts[-1][1] <= 0:
        return None
    rank = share * counts[-1][1]
    lower, below = 0.0, 0.0
    for limit, count in counts:
        if count >= rank:
            if math.isinf(limit):
                return lower
            inside = count - below
            return lower + (limit - lower) * ((rank - below) / inside if inside else 1.0)
        lower, below = limit, count
    raise AssertionError("the last bucket holds everything")
