"""The official `openai` client against a scheduler whose workers have the model `echo`.

Takes the address of the scheduler; exits with 0 if the client understands every response.
"""

import sys

import openai

TEXT = "one spore, then a thread, then a wood"


def main(address):
    # Without retries, which would hide a wrong response.
    client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=30)

    models = [model.id for model in client.models.list()]
    assert "echo" in models, models
    assert client.models.retrieve("echo").id == "echo"

    messages = [{"role": "user", "content": TEXT}]
    whole = client.chat.completions.create(model="echo", messages=messages)
    assert whole.choices[0].message.content == TEXT, whole
    assert whole.choices[0].finish_reason == "stop", whole
    assert whole.usage.total_tokens > 0, whole

    chunks = list(client.chat.completions.create(model="echo", messages=messages, stream=True))
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(pieces) == TEXT, chunks
    assert sum(1 for piece in pieces if piece) > 1, f"not streamed piece by piece: {pieces}"

    completion = client.completions.create(model="echo", prompt=TEXT)
    assert completion.choices[0].text == TEXT, completion
    chunks = list(client.completions.create(model="echo", prompt=TEXT, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == TEXT, chunks

    # The client requests base64 by default, and must return floats in both cases.
    for options in ({}, {"encoding_format": "float"}):
        response = client.embeddings.create(model="echo", input=TEXT, **options)
        embedding = response.data[0].embedding
        assert embedding and all(isinstance(number, float) for number in embedding), response

    try:
        response = client.chat.completions.create(model="no-such-model", messages=messages)
    except openai.NotFoundError as error:
        assert "no-such-model" in error.message, error.message
    else:
        raise AssertionError(f"a model that does not exist responded: {response}")


main(sys.argv[1])
