"""`make api-fuzz`: schemathesis asks the API everything that its own document allows, and some of what it does not."""

import os
import subprocess
from pathlib import Path

import pytest

from kit.wait import eventually
from test_api import port, ready  # noqa: F401  (a fixture)

SCHEMATHESIS = Path(__file__).resolve().parents[2] / ".cache/schemathesis/bin/schemathesis"
CHECKS = [
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "unsupported_method",
]


def test_the_api_keeps_to_its_document_whatever_is_asked(new_agent, start, port):  # noqa: F811
    if not SCHEMATHESIS.exists():
        pytest.skip(f"needs {SCHEMATHESIS}: tools/setup api-fuzz")
    agent = new_agent(f'[api]\nlisten = "127.0.0.1:{port}"').start()
    container = start("--memory", "256MiB")
    agent.attached(container)
    ready(agent)
    url = f"http://127.0.0.1:{port}"
    words = ["run", f"{url}/api/v1/openapi.json", "--url", url, "--checks", ",".join(CHECKS)]
    # It never ends, which no schema can say.
    words += ["--exclude-path", "/api/v1/stream", "--seed", "1", "--generation-database", "none", "--request-timeout", "20"]
    words += ["--max-examples", os.environ.get("ELBOWROOM_TEST_EXAMPLES", "100")]
    done = subprocess.run([SCHEMATHESIS, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=1200)
    print(done.stdout[-6000:])
    assert done.returncode == 0, done.stdout[-6000:]
    eventually(lambda: agent.row(container)["attached"])
