"""The four dashboards. Every metric that they name is in an `instruments.py`."""

from tools.dashboards.boards.fleet import FLEET
from tools.dashboards.boards.kv import KV
from tools.dashboards.boards.stages import STAGES
from tools.dashboards.boards.tenants import TENANTS

DASHBOARDS = (FLEET, STAGES, TENANTS, KV)
