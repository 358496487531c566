"""How many examples a second does Hugging Face's BertForMaskedLM learn from?   python hf_step.py BATCHES.npz …

BATCHES.npz is what benchmarks/text.py exports: ids and labels (steps, batch, n), −100 where nothing is asked, and the
id of padding. A step is forward, the library's own loss, backward, clipping and AdamW; dropout is the library's (.1).
What does not fit into the free memory ends in one line (exit code 1).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from measuring import highest, within_memory


def measure(given: argparse.Namespace) -> dict[str, Any]:
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
    torch.manual_seed(0)
    batches = np.load(given.batches)
    ids, labels = (torch.from_numpy(batches[name])[:, : given.batch] for name in ("ids", "labels"))
    config = transformers.BertConfig(
        vocab_size=given.vocabulary,
        hidden_size=given.dim,
        num_hidden_layers=given.layers,
        num_attention_heads=given.heads,
        intermediate_size=given.ffn_dim,
        max_position_embeddings=ids.shape[2],
        pad_token_id=int(batches["pad"]),
    )
    model = transformers.BertForMaskedLM(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    seconds = []
    for step_ids, step_labels in zip(ids, labels, strict=True):
        begin = time.perf_counter()
        seen = step_ids != config.pad_token_id
        model(input_ids=step_ids, attention_mask=seen, labels=step_labels).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - begin)
    return {
        "examples_per_second": given.batch / statistics.median(seconds[given.warm_up :]),
        "batch": given.batch,
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "peak_mb": highest(),
        "library": f"transformers {transformers.__version__}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("batches", type=Path)
    for name in ("batch", "dim", "layers", "heads", "ffn-dim", "vocabulary"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--warm-up", type=int, default=3)
    given = parser.parse_args()
    print(json.dumps(within_memory(None, f"{given.batch} examples", lambda: measure(given))))


if __name__ == "__main__":
    main()
