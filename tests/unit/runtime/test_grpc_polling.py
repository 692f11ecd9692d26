"""Services of small messages use gRPC without the threads of its event engine."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from baton.runtime.calls import grpc_polling

SERVICES = Path(__file__).parents[3] / "services"


@pytest.mark.parametrize("service", ["gateway", "quota", "tokenizer", "router"])
def test_it_is_the_first_import_of_a_service_of_small_messages(service: str) -> None:
    tree = ast.parse((SERVICES / service / "__main__.py").read_text())
    first = next(each for each in tree.body if isinstance(each, ast.Import | ast.ImportFrom))
    assert ast.unparse(first) == "from baton.runtime.calls import grpc_polling"


@pytest.mark.parametrize("given", ["", "event_engine_client"])
def test_a_variable_that_is_set_already_stays(given: str) -> None:
    code = (
        "import sys; from baton.runtime.calls import grpc_polling; import os;"
        "print(os.environ[grpc_polling.VARIABLE], 'grpc' in sys.modules)"
    )
    environment = {"PYTHONPATH": os.pathsep.join(sys.path)}
    environment |= {grpc_polling.VARIABLE: given} if given else {}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [given or grpc_polling.WITHOUT_ENGINE, "False"]
