"""Every metric of Baton, declared once: names that vLLM dashboards and autoscalers already know
where there are any, our own `baton_*` elsewhere. docs/telemetry.md explains them.

One block per service. Labels are bounded: model names that exist, reasons, roles; never tenants,
request ids or anything that a client chooses freely.
"""

from prometheus_client import Counter, Gauge, Histogram

__all__ = ["Counter", "Gauge", "Histogram"]
