# SPDX-License-Identifier: Apache-2.0
"""What else one would run, in PyTorch on the same device: the peers of the rows of cuda_hit. Prints JSON."""

import json
import statistics

import torch

REPETITIONS = 31
flushed = torch.empty(256 << 20, dtype=torch.int8, device="cuda")


def median_ms(work):
    """Of `work` captured in a CUDA graph, timed by events, the L2 cache flushed before each replay."""
    for _ in range(3):
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    times = []
    for _ in range(REPETITIONS):
        flushed.zero_()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def compose(tf32):
    """The state chain as one batched product for all layers and heads, a run at a time."""
    torch.backends.cuda.matmul.allow_tf32 = tf32
    heads, runs, dim = 30 * 32, 16, 128
    operators = torch.randn(runs, heads, dim, dim, device="cuda") * 0.5 / dim**0.5
    end_states = torch.randn(runs, heads, dim, dim, device="cuda")

    def work():
        state = end_states[0]
        for run in range(1, runs):
            state = torch.baddbmm(end_states[run], operators[run], state)
        return state

    ms = median_ms(work)
    torch.backends.cuda.matmul.allow_tf32 = False
    return ms


def rotate(tokens=32768, heads=2, dim=256, rotary=64):
    """Cached keys turned by their spans' angles and written in place, values copied beside them, bf16."""
    shape = (tokens, heads, dim)
    keys, values, keys_out, values_out = (torch.randn(shape, device="cuda").bfloat16() for _ in range(4))
    angles = torch.randn(tokens, 1, rotary // 2, device="cuda")
    cosine, sine = angles.cos(), angles.sin()

    def work():
        one, two = keys[..., : rotary // 2].float(), keys[..., rotary // 2 : rotary].float()
        keys_out[..., : rotary // 2] = (one * cosine - two * sine).bfloat16()
        keys_out[..., rotary // 2 : rotary] = (two * cosine + one * sine).bfloat16()
        keys_out[..., rotary:] = keys[..., rotary:]
        values_out.copy_(values)

    return median_ms(work)


def attend(queries=192, keys=32768, query_heads=16, kv_heads=2, dim=256):
    """SDPA with the true mask: seams of 8 rows and a question, each row sees what stands before it."""
    q = torch.randn(1, query_heads, queries, dim, device="cuda").bfloat16()
    k, v = (torch.randn(1, kv_heads, keys, dim, device="cuda").bfloat16() for _ in range(2))
    seams = [span * 2048 + row for span in range(16) for row in range(8)]
    positions = torch.tensor(seams + list(range(keys - (queries - len(seams)), keys)), device="cuda")
    mask = torch.arange(keys, device="cuda")[None, :] <= positions[:, None]
    return median_ms(
        lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True))


def matmul_tflops(size=8192):
    left, right = (torch.randn(size, size, device="cuda").bfloat16() for _ in range(2))
    return 2 * size**3 / median_ms(lambda: left @ right) / 1e9


if __name__ == "__main__":
    peers = {
        "compose_fp32": ("torch.baddbmm, all layers in one chain, fp32", compose(tf32=False)),
        "compose_fp32_generic": ("torch.baddbmm, all layers in one chain, tf32", compose(tf32=True)),
        "rebase_keys": ("torch: turn, write in place, copy", rotate()),
        "seam_attention": ("torch SDPA with the true mask", attend()),
    }
    print(json.dumps({"matmul_tflops": matmul_tflops(), "torch": torch.__version__, "peers": peers}))
