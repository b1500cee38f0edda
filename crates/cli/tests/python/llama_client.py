"""The official `openai` client against a scheduler with llama.cpp as its back end.

Takes the address of the scheduler and the models, each of which reaches llama.cpp by another route. Exits with 0 if every
request that llama.cpp can serve is served, and the others get its own answers and disturb nobody.
"""

import sys
from concurrent.futures import ThreadPoolExecutor

import openai

AT_ONCE, STREAMS, TOKENS = 64, 320, 3
# More than once for each slot of the server; the limit of an executor for other failures is three.
BAD_ROUNDS = 3
PIXEL = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def main(address, models):
    # Without retries, which would hide a failure. Long, because a busy machine is slow and nothing else is wrong then.
    client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=120)
    for model in models:
        whole = chat(client, model)
        assert whole.choices[0].finish_reason == "length", whole
        assert whole.usage.completion_tokens == TOKENS, whole
        stream(client, model)
        many_streams(client, model)
        for _ in range(BAD_ROUNDS):
            bad_requests(client, model)
            # At once, and for others too.
            stream(client, model)


def chat(client, model, text="Which fungi grow on birch?", **more):
    messages = [{"role": "user", "content": text}]
    return client.chat.completions.create(
        model=model, messages=messages, max_tokens=TOKENS, **{"temperature": 0, **more}
    )


def stream(client, model):
    chunks = [chunk for chunk in chat(client, model, stream=True) if chunk.choices]
    ends = [chunk.choices[0].finish_reason for chunk in chunks]
    assert ends[-1] == "length" and set(ends[:-1]) == {None}, ends
    pieces = [chunk.choices[0].delta.content for chunk in chunks]
    assert sum(1 for piece in pieces if piece) == TOKENS, pieces


def many_streams(client, model):
    failures = []

    def one(_):
        try:
            stream(client, model)
        except Exception as error:
            failures.append(f"{type(error).__name__}: {error}")

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(one, range(STREAMS)))
    assert not failures, f"{model}: {len(failures)} of {STREAMS} streams failed, the first: {failures[0]}"


def bad_requests(client, model):
    image = [{"type": "image_url", "image_url": {"url": PIXEL}}]
    for status, words, request in [
        (400, "temperature", lambda: chat(client, model, temperature="hot")),
        (501, "does not support embeddings", lambda: client.embeddings.create(model=model, input="birch")),
        (502, "the back end answered 500", lambda: chat(client, model, image)),
    ]:
        try:
            response = request()
        except openai.APIStatusError as error:
            assert (error.status_code, words in error.message) == (status, True), error
        else:
            raise AssertionError(f"{model}: expected {status}, and got {response}")


main(sys.argv[1], sys.argv[2:])
