"""Makes the model beside this file, and the logits that GPT2LMHeadModel of transformers computes with it.

Needs torch and transformers. `export.rs` is tested against what this writes.
"""

import json
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel

here = Path(__file__).parent
torch.manual_seed(1)
config = GPT2Config(
    n_layer=2, n_embd=8, n_head=2, n_positions=6, vocab_size=11, bos_token_id=None, eos_token_id=None
)
model = GPT2LMHeadModel(config).eval()
with torch.no_grad():
    for parameter in model.parameters():
        parameter += 0.3 * torch.randn_like(parameter)  # Far from the initial values, where norms and biases do nothing.
    tokens = [[3, 1, 4, 1, 5, 9], [10, 0, 2, 7, 8, 6]]
    logits = model(torch.tensor(tokens)).logits
model.save_pretrained(here)
(here / "generation_config.json").unlink(missing_ok=True)
rows = [[round(value, 6) for value in row] for row in logits.flatten(0, 1).tolist()]
(here / "logits.json").write_text(json.dumps({"tokens": tokens, "logits": rows}) + "\n")
