"""Sends requests that `schemathesis` generates from the scheduler's /openapi.json.

Takes the address of the scheduler; exits with 0 if every response has a status that the document
names, and none is a server error.
"""

import sys
import time

import hypothesis
import requests
import schemathesis
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import status_code_conformance

# Valid and invalid requests per operation, each: enough for every kind of value to occur, and
# under a thousand requests in all.
EXAMPLES = 12
# A response takes milliseconds, and the longest `wait` a second: a request that takes longer hangs.
RESPONSE_S = 20
LONGEST_WAIT_S = 1
# Event streams end when their task ends, which may take long.
STREAMS = "/events"
STATUSES = ["2xx", "3xx", "4xx"]

# The same requests in every run, whatever earlier runs found.
SETTINGS = hypothesis.settings(
    max_examples=EXAMPLES,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[hypothesis.Phase.generate],
    suppress_health_check=list(hypothesis.HealthCheck),
)


def harmless(case):
    """Removes long waits from a request, and addresses that the scheduler would call."""
    if isinstance(case.query, dict) and "wait" in case.query:
        try:
            if float(case.query["wait"]) > LONGEST_WAIT_S:
                case.query["wait"] = LONGEST_WAIT_S
        except (TypeError, ValueError):
            pass
    if case.path in ("/ti/register", "/api/v1/workers") and isinstance(case.body, dict):
        for key, loopback in (("host", "127.0.0.1"), ("url", "http://127.0.0.1:1")):
            if isinstance(case.body.get(key), str):
                case.body[key] = loopback


def meaningful(case, task, text):
    """Names a task and a model that exist; generated names are refused before anything else."""
    if case.path.startswith("/api/v1/tasks/"):
        case.path_parameters["id"] = task
    if isinstance(case.body, dict) and "model" in case.body:
        case.body["model"] = "echo"
        if text and case.path.startswith("/v1/"):
            messages = [{"role": "user", "content": text}]
            case.body.update(messages=messages, prompt=text, input=text)


def try_operation(operation, mode, task, failures):
    statuses = []

    @SETTINGS
    @hypothesis.given(
        case=operation.as_strategy(generation_mode=mode),
        exists=hypothesis.strategies.booleans(),
        text=hypothesis.strategies.text(),
    )
    def run(case, exists, text):
        if exists:
            meaningful(case, task, text)
        harmless(case)
        response = case.call(timeout=RESPONSE_S)
        statuses.append(response.status_code)
        case.validate_response(response, checks=[not_a_server_error, status_code_conformance])

    try:
        run()
    except hypothesis.errors.Unsatisfiable:
        # No request of the operation is invalid: an id, for instance, may be any text.
        assert mode.is_negative, operation.label
    except (Exception, FailureGroup) as error:
        failures.append(f"{operation.label}: {error}")
    return statuses


def main(address):
    config = schemathesis.Config.from_dict(
        {"checks": {"not_a_server_error": {"expected-statuses": STATUSES}}}
    )
    schema = schemathesis.openapi.from_url(f"{address}/openapi.json", config=config)
    submitted = requests.post(f"{address}/api/v1/tasks", json={"model": "echo"}, timeout=RESPONSE_S)
    task = submitted.json()["id"]
    failures = []
    total = 0
    for found in schema.get_all_operations():
        operation = found.ok()
        if operation.path.endswith(STREAMS):
            continue
        began = time.monotonic()
        statuses = []
        for mode in schemathesis.GenerationMode:
            statuses += try_operation(operation, mode, task, failures)
        total += len(statuses)
        seen = {status: statuses.count(status) for status in sorted(set(statuses))}
        print(f"{operation.label}: {seen} in {time.monotonic() - began:.1f} s", flush=True)
    print(f"{total} requests")
    assert total > 0, "the document names no operation"
    if failures:
        sys.exit("\n\n".join(failures))


main(sys.argv[1])
