"""llama.cpp's own HTTP server, with a model of random weights.

Takes the path to write the model to, and prints the address when it listens. It stays until its standard input ends.
The texts mean nothing; what counts is how the server speaks HTTP, and what it answers to requests that it cannot handle.
"""

import sys

import gguf
import numpy
import xllamacpp

WIDTH, HIDDEN, HEADS, BLOCKS, CONTEXT = 64, 128, 4, 2, 512
# As many requests at once as a small machine serves; the others wait inside the server.
SLOTS = 4
SPECIAL = ["<unk>", "<s>", "</s>"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
# The tokenizer marks the start of a word with this character. So many that the best of them is better than none.
WORDS = ["\u2581"] + [f"\u2581{word}" for word in range(64)]


def write_model(path):
    vocabulary = SPECIAL + BYTES + WORDS
    kinds = (
        [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL]
        + [gguf.TokenType.BYTE] * len(BYTES)
        + [gguf.TokenType.NORMAL] * len(WORDS)
    )
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_block_count(BLOCKS)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_vocab_size(len(vocabulary))
    writer.add_tokenizer_model("llama")
    writer.add_token_list([token.encode() for token in vocabulary])
    writer.add_token_scores([0.0] * len(vocabulary))
    writer.add_token_types(kinds)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template("{% for message in messages %}{{ message['content'] }}{% endfor %}")
    for name, tensor in tensors(len(vocabulary)):
        writer.add_tensor(f"{name}.weight", tensor.astype(numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def tensors(vocabulary):
    random = numpy.random.default_rng(seed=1)

    def weights(*shape):
        return random.normal(scale=0.2, size=shape)

    output = weights(vocabulary, WIDTH)
    # At temperature 0 neither an end nor a byte is the best token: a response has all the tokens that were requested.
    output[: len(SPECIAL + BYTES)] = 0
    yield "token_embd", weights(vocabulary, WIDTH)
    yield "output_norm", numpy.ones(WIDTH)
    yield "output", output
    for block in range(BLOCKS):
        for name in ("attn_norm", "ffn_norm"):
            yield f"blk.{block}.{name}", numpy.ones(WIDTH)
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            yield f"blk.{block}.{name}", weights(WIDTH, WIDTH)
        for name in ("ffn_gate", "ffn_up"):
            yield f"blk.{block}.{name}", weights(HIDDEN, WIDTH)
        yield f"blk.{block}.ffn_down", weights(WIDTH, HIDDEN)


def serve(path):
    parameters = xllamacpp.CommonParams()
    parameters.model.path = path
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = 0
    parameters.n_parallel = SLOTS
    parameters.n_ctx = SLOTS * CONTEXT
    parameters.cpuparams.n_threads = 1
    parameters.warmup = False
    server = xllamacpp.Server(parameters)
    print("llama.cpp listens at", server.listening_address, flush=True)
    sys.stdin.read()


write_model(sys.argv[1])
serve(sys.argv[1])
